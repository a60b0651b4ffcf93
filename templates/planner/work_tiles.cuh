// The last step of planning: WorkTileWriter writes the work tiles. kGroupLanes lanes write one. All
// planner CTAs of a phase compute the same schedule, and each writes some of its work tiles.
//
// The input is the chosen schedule, which says what each work tile computes. The writer finds the
// segment of the work tile's first block, and the pages of the first kStartRuns runs of that
// segment from this block on. The output is phase.work.work_tiles.
#pragma once

#include "planner/segments.cuh"
#include "planner/units.cuh"

namespace lazyrope {

// WorkTiles is Planner::ChosenSchedule: it has num_work_tiles() and describe().
template <class Spec, class WorkTiles>
class WorkTileWriter {
  using Mask = typename Spec::Mask;
  static constexpr bool kHasStates = Spec::kMemories > 0;

 public:
  LAZYROPE_DEVICE WorkTileWriter(const CallerInputs& caller, const PlanPhase& phase,
                                 const WorkTiles& work_tiles)
      : caller_(caller), phase_(phase), work_tiles_(work_tiles) {}

  // CTA `planner` writes the work tiles planner, planner + num_planners and so on. All threads of
  // the CTA take part.
  LAZYROPE_DEVICE void write(int32 planner, int32 num_planners) const {
    constexpr int32 kGroups = Spec::kThreads / kGroupLanes;
    const int32 num_work_tiles = work_tiles_.num_work_tiles();
#pragma unroll 1
    for (int32 first = thread_index() / kGroupLanes;; first += kGroups) {
      const int32 index = first * num_planners + planner;
      if (!vote_sync_any(index < num_work_tiles)) break;
      write_work_tile(index, index < num_work_tiles);
    }
  }

 private:
  static constexpr int32 kChunks = sizeof(WorkTile) / sizeof(Chunk);
  static constexpr int32 kChunksOfLane = kChunks / kGroupLanes;
  static constexpr int32 kPageWords =
      (sizeof(WorkTile) - sizeof(WorkTile::num_combiners) - sizeof(WorkTileStart::page)) / 4;

  // Writes one work tile per group of lanes. All lanes of the warp take part; groups whose work
  // tile does not exist write nothing.
  LAZYROPE_DEVICE void write_work_tile(int32 index, bool exists) const {
    WorkTile work_tile{};
    work_tiles_.describe(work_tile, index);
    const PositionRange queries = {work_tile.extent.first_position, work_tile.extent.last_position};
    const BlockLocation location =
        SegmentGroup<Mask, kGroupLanes, kHasStates>(
            caller_, phase_.block_keys, work_tile.keys.segment, work_tile.keys.segment_end)
            .find(queries, work_tile.keys.first_block);
    VisibleSegment start{};
    if (work_tile.extent.num_blocks > 0) start = begin(work_tile, location);
    if (!exists) return;
    auto* to = reinterpret_cast<Chunk*>(phase_.work.work_tiles + index) + group_lane<kGroupLanes>();
    Chunk chunks[kChunksOfLane];
#pragma unroll
    for (int32 i = 0; i < kChunksOfLane; ++i)
      chunks[i] = chunk(work_tile, group_lane<kGroupLanes>() + i * kGroupLanes, start);
#pragma unroll
    for (int32 i = 0; i < kChunksOfLane; ++i) st_global(to + i * kGroupLanes, chunks[i]);
  }

  // Completes the work tile except for its pages. Returns the segment with record.begin set to
  // the first slot of the work tile's first block, which may precede the segment's first token.
  // chunk() looks up the pages from there.
  LAZYROPE_DEVICE VisibleSegment begin(WorkTile& work_tile, const BlockLocation& location) const {
    VisibleSegment segment = location.segment;
    work_tile.keys.segment = location.index;
    work_tile.keys.first_block = location.block;
    const SegmentRecord& record = segment.record;
    const int32 block_slots = phase_.block_keys.value * slots_factor<kHasStates>(record.first_run);
    const int32 slot = segment.first_slot() + location.block * block_slots;
    work_tile.start.base = record.base;
    work_tile.start.position = record.origin + slot;
    work_tile.start.begin = larger(record.begin - slot, 0);
    if constexpr (Spec::kMeasuresPageMass)
      work_tile.start.begin = numbered_begin(work_tile.start.begin,
                                             caller_.first_run(location.index) + slot / kRunSlots);
    if constexpr (kHasStates)
      work_tile.start.begin = numbered_begin(work_tile.start.begin, record.first_run);
    if (kHasStates && has_cells(record.first_run)) work_tile.start.position = location.index;
    work_tile.start.end = segment.end - slot;
    work_tile.start.slot = caller_.slot_in_page(slot);
    work_tile.start.page_size = caller_.page_size();
    segment.record.begin = slot;
    return segment;
  }

  LAZYROPE_DEVICE Chunk chunk(const WorkTile& work_tile, int32 index,
                              const VisibleSegment& start) const {
    const auto& [extent, rows, keys, split, begin, num_combiners] = work_tile;
    const Chunk all[] = {
        chunk_of(extent.num_blocks, extent.num_rows, extent.first_position, extent.last_position),
        chunk_of(rows.query_token, rows.first_row, rows.kv_head, rows.num_heads),
        chunk_of(keys.segment, keys.segment_end, keys.first_block, keys.next),
        chunk_of(split.index, split.count, split.partial, split.counter),
        chunk_of(begin.base, begin.position, begin.begin, begin.end),
        chunk_of(begin.slot, begin.page_size, 0, 0)};
    Chunk chunk{};
#pragma unroll
    for (int32 i = 0; i < 6; ++i)
      if (index == i) chunk = all[i];
    // The addresses are computed without a branch, so that the loads are issued together.
    const int32* page[4];
    bool exists[4];
#pragma unroll
    for (int32 word = 0; word < 4; ++word) {
      const int32 run = index * 4 + word - kPageWords;
      const int32 slot = start.record.begin + run * kRunSlots;
      page[word] = caller_.page(start.record, slot);
      exists[word] = run >= 0 && run < kStartRuns && slot < start.end;
    }
#pragma unroll
    for (int32 word = 0; word < 4; ++word)
      if (exists[word]) chunk.word[word] = static_cast<uint32>(ld_global_nc(page[word]));
    if (index == kChunks - 1) chunk.word[3] = static_cast<uint32>(num_combiners);
    return chunk;
  }

  const CallerInputs& caller_;
  const PlanPhase& phase_;
  const WorkTiles& work_tiles_;
};

}  // namespace lazyrope
