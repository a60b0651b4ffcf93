// Where the KV blocks of an item lie: a circular table in shared memory, filled a window of blocks
// at a time and well ahead of use. The lanes of one warp find the segments of a window's blocks by
// a prefix sum, so short segments cost no more than long ones, and page numbers arrive by
// asynchronous copy.
#pragma once

#include "isa/async_copy.cuh"
#include "ops/query_rows.cuh"
#include "ops/segment_blocks.cuh"

namespace lazyrope {

struct BlockInfo {
  int32 base;      // of its segment
  int32 position;  // logical position of the block's slot 0
  int32 begin;     // its valid slots
  int32 end;
};

struct alignas(8) RunPlace {
  int32 page;
  int32 slot;  // in the page
};

// Runs of a block that the table's users read: kRuns of them from `first_run` on.
template <class Mask, int kBlockSlots, int kRuns>
class BlockTable {
 public:
  static constexpr int kWindow = kWarpThreads / kRuns;  // blocks resolved at once
  static constexpr int kCapacity = 2 * kWindow;         // blocks in the table
  static constexpr int kBytes = kCapacity * (static_cast<int>(sizeof(BlockInfo)) +
                                             kRuns * static_cast<int>(sizeof(RunPlace))) +
                                static_cast<int>(sizeof(Chunk));

  LAZYROPE_DEVICE BlockTable(SharedPtr memory, int32 first_run, const StepView& step, ItemPtr item)
      : memory_(memory), first_run_(first_run), step_(step), item_(item) {}

  LAZYROPE_DEVICE BlockInfo info(int32 block) const {
    return ld_shared<BlockInfo>(info_address(block));
  }
  LAZYROPE_DEVICE RunPlace run(int32 block, int32 run) const {
    return ld_shared<RunPlace>(run_address(block, run));
  }

  // One warp fills window `window`; windows are taken in order, from 0. The page numbers are part
  // of the caller's next group of asynchronous copies. All who use the table synchronize before
  // what was filled is read, and before the next window.
  LAZYROPE_DEVICE void resolve(int32 window) const {
    const ItemKeys keys = item_.keys();
    const ItemExtent extent = item_.extent();
    Walk walk = window == 0 ? Walk{keys.segment, -keys.first_block}
                            : ld_shared<Walk>(walk_address(window - 1));
    const int32 block = window * kWindow + lane_index() / kRuns;
    const int32 run = lane_index() % kRuns;
    const bool wanted = block < extent.num_blocks;
#pragma unroll 1
    while (true) {
      const int32 index = walk.segment + lane_index();
      VisibleSegment segment{};
      if (index < keys.segment_end)
        segment = visible_segment<Mask>(load_segment(step_.segments + index),
                                        {extent.first_position, extent.last_position});
      const int32 blocks = segment.blocks(kBlockSlots);
      const int32 blocks_through = warp_prefix_sum(blocks);
      const int32 total = shfl_sync_idx(blocks_through, kWarpThreads - 1);
      const int32 target = block - walk.block;
      const int32 owner = warp_upper_bound(blocks_through, target);
      const int32 owner_first = shfl_sync_idx(blocks_through - blocks, owner);
      const VisibleSegment found = from_lane(segment, owner);
      // Below 0: found in the 32 segments before.
      if (wanted && target >= 0 && target < total) write(block, run, found, target - owner_first);
      if (!vote_sync_any(wanted && target >= total)) break;
      walk.segment += kWarpThreads;
      walk.block += total;
      if (walk.segment >= keys.segment_end) break;
    }
    if (lane_index() == 0) st_shared(walk_address(window), walk);
  }

 private:
  // Where the search for the next window begins: a segment, and the item's block that it begins
  // with. Kept twice, by turns: other lanes may still be reading where this window's search began.
  struct alignas(8) Walk {
    int32 segment;
    int32 block;
  };
  static_assert(2 * sizeof(Walk) == sizeof(Chunk));  // the table's last bytes

  LAZYROPE_DEVICE SharedPtr walk_address(int32 window) const {
    return memory_ + (kBytes - (window % 2 + 1) * static_cast<int32>(sizeof(Walk)));
  }
  LAZYROPE_DEVICE SharedPtr info_address(int32 block) const {
    return memory_ + block % kCapacity * static_cast<int32>(sizeof(BlockInfo));
  }
  LAZYROPE_DEVICE SharedPtr run_address(int32 block, int32 run) const {
    return memory_ + kCapacity * static_cast<int32>(sizeof(BlockInfo)) +
           (block % kCapacity * kRuns + run) * static_cast<int32>(sizeof(RunPlace));
  }

  LAZYROPE_DEVICE static SegmentRecord load_segment(const SegmentRecord* p) {
    const Chunk c = ld_global_nc(reinterpret_cast<const Chunk*>(p));
    SegmentRecord record{};
    record.base = static_cast<int32>(c.word[0]);
    record.origin = static_cast<int32>(c.word[1]);
    record.begin = static_cast<int32>(c.word[2]);
    record.end = static_cast<int32>(c.word[3]);
    record.first_page = ld_global_nc(&p->first_page);
    return record;
  }

  LAZYROPE_DEVICE static VisibleSegment from_lane(const VisibleSegment& mine, int32 lane) {
    VisibleSegment s{};
    s.record.base = shfl_sync_idx(mine.record.base, lane);
    s.record.origin = shfl_sync_idx(mine.record.origin, lane);
    s.record.begin = shfl_sync_idx(mine.record.begin, lane);
    s.record.first_page = shfl_sync_idx(mine.record.first_page, lane);
    s.end = shfl_sync_idx(mine.end, lane);
    return s;
  }

  LAZYROPE_DEVICE void write(int32 block, int32 run, const VisibleSegment& segment,
                             int32 block_in_segment) const {
    const int32 slot = segment.first_slot() + block_in_segment * kBlockSlots;
    if (run == 0) {
      const BlockInfo info = {segment.record.base, segment.record.origin + slot,
                              larger(segment.record.begin - slot, 0),
                              smaller(segment.end - slot, kBlockSlots)};
      st_shared(info_address(block), info);
    }
    const int32 run_slot = slot + (first_run_ + run) * kRunSlots;
    const int32 page_size = ld_global_nc(&step_.header->page_size);
    const SharedPtr place = run_address(block, run);
    st_shared(place + 4, run_slot % page_size);
    if (run_slot < segment.end) {
      const int32* pages = reinterpret_cast<const int32*>(
          ld_global_nc(reinterpret_cast<const uint64*>(&step_.header->pages)));
      cp_async_ca_4(place, pages + segment.record.first_page + run_slot / page_size);
    } else {
      st_shared(place, 0);  // nothing is read there, but its address is formed
    }
  }

  SharedPtr memory_;
  int32 first_run_;
  const StepView& step_;
  ItemPtr item_;
};

}  // namespace lazyrope
