// The warps that make what others turn queries by, for an item's next document while the present
// one is computed on.
#pragma once

#include "family/sm90a/window_user.cuh"
#include "ops/turn_together.cuh"

namespace lazyrope {

template <class Spec, class Memory>
class RotationMaker {
 public:
  LAZYROPE_DEVICE RotationMaker(const AttendParams& params, Memory memory)
      : params_(params),
        memory_(memory),
        windows_(memory),
        rotations_(memory.at + Memory::kRotationBarriers) {}

  LAZYROPE_DEVICE void run() {
    for_each_item(memory_, [&](ItemPtr item, int32 place) {
      const int32 num_blocks = item.extent().num_blocks;
      const int32 first = item.start().base;
      if (num_blocks > 0)
        windows_.for_each_document(memory_.table(params_.step, item), num_blocks, place,
                                   [&](int32 base, int32 document) {
                                     if (warp_uniform(document >= Memory::kFirstRotation))
                                       make(static_cast<int64>(first) - base);
                                   });
    });
  }

 private:
  LAZYROPE_DEVICE void make(int64 positions) {
    rotations_.wait(turn_.at);
    share_rotation<KeptRotation<Spec>, typename Memory::RotationMakers>(
        memory_.rotation(turn_.at), Spec::frequencies(), positions);
    rotations_.pass(turn_.at);
    turn_.advance();
  }

  const AttendParams& params_;
  Memory memory_;
  WindowUser<Memory> windows_;
  FillSide rotations_;
  RingPlace<Memory::kRotationPlaces> turn_;
};

}  // namespace lazyrope
