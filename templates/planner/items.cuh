// The planner's last stage: items, eight lanes an item. What the CTAs of a phase have found is the
// same; each writes some of the items.
#pragma once

#include "planner/segments.cuh"
#include "planner/units.cuh"

namespace lazyrope {

// Items: Planner::Chosen, which say what there is of each.
template <class Spec, class Items>
class ItemWriter {
  using Mask = typename Spec::Mask;

 public:
  LAZYROPE_DEVICE ItemWriter(const CallerStep& caller, const PlanPhase& phase, const Items& items)
      : caller_(caller), phase_(phase), items_(items) {}

  // Every num_planners-th of all items.
  LAZYROPE_DEVICE void write(int32 planner, int32 num_planners) const {
    constexpr int32 kGroups = Spec::kThreads / kGroupLanes;
    const int32 num_items = items_.num_items();
#pragma unroll 1
    for (int32 first = thread_index() / kGroupLanes;; first += kGroups) {
      const int32 index = first * num_planners + planner;
      if (!vote_sync_any(index < num_items)) break;
      write_item(index, index < num_items);
    }
  }

 private:
  static constexpr int32 kChunks = sizeof(Item) / sizeof(Chunk);
  static constexpr int32 kChunksOfLane = kChunks / kGroupLanes;
  static constexpr int32 kPageWords =
      (sizeof(Item) - sizeof(Item::num_owners) - sizeof(ItemStart::page)) / 4;

  // By all lanes of a warp, some of which may have none.
  LAZYROPE_DEVICE void write_item(int32 index, bool exists) const {
    Item item{};
    items_.describe(item, index);
    const PositionRange queries = {item.extent.first_position, item.extent.last_position};
    const BlockPlace place =
        SegmentGroup<Mask, kGroupLanes>(caller_, phase_.block_keys, item.keys.segment,
                                        item.keys.segment_end)
            .find(queries, item.keys.first_block);
    VisibleSegment start{};
    if (item.extent.num_blocks > 0) start = begin(item, place);
    if (!exists) return;
    auto* to = reinterpret_cast<Chunk*>(phase_.work.items + index) + group_lane<kGroupLanes>();
    Chunk chunks[kChunksOfLane];
#pragma unroll
    for (int32 i = 0; i < kChunksOfLane; ++i)
      chunks[i] = chunk(item, group_lane<kGroupLanes>() + i * kGroupLanes, start);
#pragma unroll
    for (int32 i = 0; i < kChunksOfLane; ++i) st_global(to + i * kGroupLanes, chunks[i]);
  }

  // Completes all but the pages, and returns where they are found.
  LAZYROPE_DEVICE VisibleSegment begin(Item& item, const BlockPlace& place) const {
    VisibleSegment segment = place.segment;
    item.keys.segment = place.index;
    item.keys.first_block = place.block;
    const SegmentRecord& record = segment.record;
    const int32 slot = segment.first_slot() + place.block * phase_.block_keys.value;
    item.start.base = record.base;
    item.start.position = record.origin + slot;
    item.start.begin = larger(record.begin - slot, 0);
    item.start.end = segment.end - slot;
    item.start.slot = caller_.slot_in_page(slot);
    item.start.page_size = caller_.page_size();
    segment.record.begin = slot;
    return segment;
  }

  LAZYROPE_DEVICE Chunk chunk(const Item& item, int32 index, const VisibleSegment& start) const {
    const auto& [extent, rows, keys, split, begin, num_owners] = item;
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
    // Under no condition but that of the loads, which are thus made together.
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
    if (index == kChunks - 1) chunk.word[3] = static_cast<uint32>(num_owners);
    return chunk;
  }

  const CallerStep& caller_;
  const PlanPhase& phase_;
  const Items& items_;
};

}  // namespace lazyrope
