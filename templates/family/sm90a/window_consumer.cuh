// The consumer side of the window pipeline: a warp waits for and releases the windows of the block
// table, while it visits the blocks of its CTA's work tiles. The warp takes part in every window.
//
// A work tile's first window has only the blocks whose page numbers are in the work tile, so the
// scheduler fills it without a search. Blocks are numbered so that each window ends at a multiple
// of kWindow.
//
// Role: each copier, rotator, rotation producer and consumer warp that visits blocks has one
// object. It releases a window with one arrival (tile_memory.cuh has the counts).
#pragma once

#include "family/sm90a/tile_memory.cuh"

namespace lazyrope {

template <class Memory>
class WindowConsumer {
  static constexpr int kWindow = Memory::Table::kWindow;

 public:
  LAZYROPE_DEVICE explicit WindowConsumer(Memory memory)
      : memory_(memory), windows_(memory.at + Memory::kWindowBarriers) {}

  // Waits for the first window of the work tile in `stage`, which has at least one block. Returns
  // the number of its first block.
  LAZYROPE_DEVICE int32 begin(int32 stage) {
    windows_.wait(next_stage_);
    return ld_shared<int32>(memory_.first_block(stage));
  }

  // The warp calls this before each block of the work tile except the first.
  LAZYROPE_DEVICE void enter_block(int32 block) {
    if (block % kWindow == 0) windows_.wait(Memory::window_of(block));
  }

  // Waits like enter_block(), which the warp also calls later.
  LAZYROPE_DEVICE void await_block(int32 block) const {
    if (block % kWindow == 0) windows_.await_phase(Memory::window_of(block));
  }

  // Replaces enter_block() if something else has shown that the block's window is full.
  LAZYROPE_DEVICE void enter_ready_block(int32 block) {
    if (block % kWindow == 0) windows_.flip_phase(Memory::window_of(block));
  }

  // The warp calls this after each block of the work tile except the last.
  LAZYROPE_DEVICE void finish_block(int32 block) const {
    if ((block + 1) % kWindow == 0) windows_.release(Memory::window_of(block));
  }

  LAZYROPE_DEVICE void finish_last_block(int32 block) {
    windows_.release(Memory::window_of(block));
    next_stage_ = Memory::window_of(block + kWindow);
  }

  // Visits all blocks of the work tile in `stage`, which has at least one. Calls visit(base,
  // document) for each document, counted from 0. Consecutive segments of one document count
  // separately.
  template <class Visit>
  LAZYROPE_DEVICE void for_each_document(const typename Memory::Table& table, int32 num_blocks,
                                         int32 stage, const Visit& visit) {
    int32 block = begin(stage);
    const int32 end = block + num_blocks;
    int32 document = 0;
    uint32 begins = 1;  // one bit for each block of a window
#pragma unroll 1
    while (true) {
      const int32 count = smaller(end - block, kWindow - block % kWindow);
      const BlockInfo info = table.info(block + smaller(lane_index(), count - 1));
      begins |= vote_sync_ballot(info.ends_segment<Memory::Table::kMaxSlots>()) << 1;
#pragma unroll 1
      for (uint32 left = begins & ~(~0u << count); left != 0; left &= left - 1)
        visit(shfl_sync_idx(info.base, lowest_one(left)), document++);
      begins = begins >> count & 1;
      block += count;
      if (block == end) break;
      finish_block(block - 1);
      enter_block(block);
    }
    finish_last_block(end - 1);
  }

 private:
  Memory memory_;
  PipelineConsumer windows_;
  int32 next_stage_ = 0;  // stage of the next work tile's first window
};

}  // namespace lazyrope
