// What a warp that computes waits for and gives back as it goes through an item's blocks: the
// window that tells where they lie, turned queries, keys, values.
#pragma once

#include "family/sm90a/tile_memory.cuh"

namespace lazyrope {

template <class Memory>
class BlockUser {
  using Table = typename Memory::Table;

 public:
  LAZYROPE_DEVICE explicit BlockUser(Memory memory)
      : memory_(memory),
        windows_(memory.at + Memory::kWindowBarriers),
        turned_(memory.at + Memory::kTurnedBarriers),
        keys_(memory.at + Memory::kKeyBarriers),
        values_(memory.at + Memory::kValueBarriers) {}

  // The products of keys before have been waited for. `base`: of the block before.
  LAZYROPE_DEVICE BlockInfo enter(const Table& table, int32 block, int32 base) {
    const int32 window = Memory::window_of(block);
    const bool is_first = block % Table::kWindow == 0;
    if (is_first && block > 0) windows_.pass(1 - window);
    if (is_first) windows_.wait(window);
    const BlockInfo info = table.info(block);
    if (block == 0 || info.base != base) {
      if (block > 0) {
        turned_.pass(turn_.at);
        turn_.advance();
      }
      turned_.wait(turn_.at);
    }
    return info;
  }

  // All of the item's products have been waited for.
  LAZYROPE_DEVICE void leave(int32 num_blocks) {
    turned_.pass(turn_.at);
    turn_.advance();
    windows_.pass(Memory::window_of(num_blocks - 1));
  }

  LAZYROPE_DEVICE SharedPtr queries() const { return memory_.turned(turn_.at); }

  LAZYROPE_DEVICE SharedPtr full_keys() {
    keys_.wait(key_.at);
    return memory_.keys(key_.at);
  }
  LAZYROPE_DEVICE void pass_keys() {
    keys_.pass(key_.at);
    key_.advance();
  }

  LAZYROPE_DEVICE SharedPtr full_values() {
    values_.wait(value_.at);
    return memory_.values(value_.at);
  }
  LAZYROPE_DEVICE void pass_values() {
    values_.pass(value_.at);
    value_.advance();
  }

 private:
  Memory memory_;
  UseSide windows_;
  UseSide turned_;
  UseSide keys_;
  UseSide values_;
  RingPlace<Memory::kTurns> turn_;
  RingPlace<Memory::kStages> key_;
  RingPlace<Memory::kStages> value_;
};

}  // namespace lazyrope
