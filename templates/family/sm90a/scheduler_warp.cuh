// The scheduler warp (warp 0) loads the CTA's work tiles and fills the block table, a window of
// blocks at a time. It is ahead of all other warps.
//
// Reads: WorkTile [work tiles] and the queue's counter in global memory; the step's segments and
// page numbers.
// Writes: kNumWorkTiles stages of one WorkTile, kWindows windows of the block table, and the number
// of each work tile's first block, all in shared memory.
//
// It is the only producer of the work tile pipeline and of the window pipeline (tile_memory.cuh).
#pragma once

#include "family/sm90a/tile_memory.cuh"

namespace lazyrope {

template <class Memory>
class SchedulerWarp {
  using Table = typename Memory::Table;
  static constexpr int kWorkTileChunks = sizeof(WorkTile) / sizeof(Chunk);

 public:
  // `first` is the lane's result of first_work_tile().
  LAZYROPE_DEVICE SchedulerWarp(const AttendParams& params, Memory memory, const Chunk& first)
      : params_(params),
        memory_(memory),
        work_tiles_(memory.at + Memory::kWorkTileBarriers),
        windows_(memory.at + Memory::kWindowBarriers),
        prefetched_(first) {}

  // Loads the lane's 16 bytes of the CTA's first work tile. The kernel calls this before anything
  // else, so the load is in flight while the CTA initializes.
  LAZYROPE_DEVICE static Chunk first_work_tile(const AttendParams& params) {
    return load(params, block_index());
  }

  LAZYROPE_DEVICE void run() {
    int32 next = 0;
    while (next != kNoWorkTile) {
      const int32 stage = work_tile_stage_.index;
      if constexpr (kHasQueue) {
        if (next < kNoWorkTile) prefetched_ = take_from_queue(-next);
      }
      const WorkTilePtr work_tile = publish(prefetched_);
      if (work_tile.extent().num_rows == 0) return;
      next = work_tile.keys().next;
      if (next >= 0) prefetched_ = load(params_, next);
      if (work_tile.extent().num_blocks > 0) resolve_blocks(work_tile, stage);
    }
  }

 private:
  static constexpr bool kHasQueue = Memory::kIsPrefill;

  // Takes a work tile from the queue as soon as its stage is empty, and returns an empty work tile
  // after the last one. Each CTA finds the queue empty once, and does not take its first work tile
  // from it. A launch thus increments the counter num_work_tiles times, and the counter is 0 again
  // for the next launch.
  LAZYROPE_DEVICE Chunk take_from_queue(int32 num_work_tiles) const {
    work_tiles_.await_phase(work_tile_stage_.index);
    uint32 taken = 0;
    if (lane_index() == 0)
      taken = atom_relaxed_gpu_inc(params_.work.counters, static_cast<uint32>(num_work_tiles) - 1);
    const int32 index = params_.work.num_ctas + static_cast<int32>(shfl_sync_idx(taken, 0));
    return index < num_work_tiles ? load(params_, index) : Chunk{};
  }

  LAZYROPE_DEVICE static Chunk load(const AttendParams& params, int32 index) {
    const auto* from = reinterpret_cast<const Chunk*>(params.work.work_tiles + index);
    return ld_global_nc(from + lane_index() % kWorkTileChunks);
  }

  LAZYROPE_DEVICE WorkTilePtr publish(const Chunk& chunk) {
    work_tiles_.acquire(work_tile_stage_.index);
    const WorkTilePtr work_tile = memory_.work_tile(work_tile_stage_.index);
    if (lane_index() < kWorkTileChunks) work_tile.store(lane_index(), chunk);
    work_tiles_.commit(work_tile_stage_.index);
    work_tile_stage_.advance();
    return work_tile;
  }

  // The first window has the blocks whose page numbers are in the work tile. Blocks are numbered so
  // that this window, too, ends at a multiple of kWindow.
  LAZYROPE_DEVICE void resolve_blocks(WorkTilePtr work_tile, int32 stage) {
    const WorkTileStart start = work_tile.start();
    const int32 num_prefetched = memory_.table(params_.step, work_tile).count_prefetched(start);
    const int32 first = (window_stage_.index + 1) * Table::kWindow - num_prefetched;
    const Table table = memory_.table(params_.step, work_tile, first);
    fill_first_window(table, start, num_prefetched, stage, first);
    if (num_prefetched == work_tile.extent().num_blocks) return;
    typename Table::Lookup lookup = table.look_up_first();
    const int32 end = first + work_tile.extent().num_blocks;
#pragma unroll 1
    for (int32 block = first + num_prefetched; block < end; block += Table::kWindow)
      resolve_window(table, block, lookup);
  }

  LAZYROPE_DEVICE void fill_first_window(const Table& table, const WorkTileStart& start,
                                         int32 num_prefetched, int32 stage, int32 first) {
    windows_.acquire(window_stage_.index);
    table.write_prefetched(start, num_prefetched);
    if (lane_index() == 0) st_shared(memory_.first_block(stage), first);
    windows_.commit(window_stage_.index);
    window_stage_.advance();
  }

  // Fills a window from its first block, `block`, on. The caller has loaded `lookup`.
  LAZYROPE_DEVICE void resolve_window(const Table& table, int32 block,
                                      typename Table::Lookup& lookup) {
    const int32 window = block / Table::kWindow;
    windows_.acquire(window_stage_.index);
    table.store_page(window, block, table.resolve_ahead(window, block, lookup));
    windows_.commit(window_stage_.index);
    window_stage_.advance();
  }

  const AttendParams& params_;
  Memory memory_;
  PipelineProducer work_tiles_;
  PipelineProducer windows_;
  PipelineStage<Memory::kNumWorkTiles> work_tile_stage_;
  PipelineStage<Memory::kWindows> window_stage_;
  Chunk prefetched_;  // the lane's 16 bytes of the next work tile
};

}  // namespace lazyrope
