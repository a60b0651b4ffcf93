// A warp's way through the windows in which the blocks of its CTA's work tiles are found: it takes
// part in every one.
//
// A work tile's first window has the blocks whose pages the work tile brings, and is there at once;
// those that follow are whole. Blocks are numbered so that each window ends with a multiple of its
// length.
#pragma once

#include "family/sm90a/tile_memory.cuh"

namespace lazyrope {

template <class Memory>
class WindowConsumer {
  static constexpr int kWindow = Memory::Table::kWindow;

 public:
  LAZYROPE_DEVICE explicit WindowConsumer(Memory memory)
      : memory_(memory), windows_(memory.at + Memory::kWindowBarriers) {}

  // The number of the first block of the work tile in `stage`, which has one, once its window is
  // there.
  LAZYROPE_DEVICE int32 begin(int32 stage) {
    windows_.wait(next_stage_);
    return ld_shared<int32>(memory_.first_block(stage));
  }

  // Before another block of the work tile.
  LAZYROPE_DEVICE void enter_block(int32 block) {
    if (block % kWindow == 0) windows_.wait(Memory::window_of(block));
  }

  // The same for who has been told that the block's window is there.
  LAZYROPE_DEVICE void enter_ready_block(int32 block) {
    if (block % kWindow == 0) windows_.flip_phase(Memory::window_of(block));
  }

  // After a block that is not the work tile's last.
  LAZYROPE_DEVICE void finish_block(int32 block) const {
    if ((block + 1) % kWindow == 0) windows_.release(Memory::window_of(block));
  }

  LAZYROPE_DEVICE void finish_last_block(int32 block) {
    windows_.release(Memory::window_of(block));
    next_stage_ = Memory::window_of(block + kWindow);
  }

  // Through all blocks of the work tile in `stage`, which has one: visit(base, document) for each
  // document, or part of one that is a segment of its own, counted from 0.
  template <class Visit>
  LAZYROPE_DEVICE void for_each_document(const typename Memory::Table& table, int32 num_blocks,
                                         int32 stage, const Visit& visit) {
    int32 block = begin(stage);
    const int32 end = block + num_blocks;
    int32 document = 0;
    uint32 begins = 1;  // of a window's blocks a bit each
#pragma unroll 1
    while (true) {
      const int32 count = smaller(end - block, kWindow - block % kWindow);
      const BlockInfo info = table.info(block + smaller(lane_index(), count - 1));
      begins |= vote_sync_ballot(info.ends_segment<Memory::kKeys>()) << 1;
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
  int32 next_stage_ = 0;  // where the next work tile begins
};

}  // namespace lazyrope
