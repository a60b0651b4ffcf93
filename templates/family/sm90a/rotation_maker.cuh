// The warps that make what others turn queries by, for an item's next document while the present
// one is computed on; and tell them, where they do not look themselves, which is its last.
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
      if (num_blocks == 0) return;
      windows_.for_each_document(memory_.table(params_.step, item), num_blocks, place,
                                 [&](int32 base, int32 document) {
                                   if (warp_uniform(document >= Memory::kFirstRotation))
                                     make(static_cast<int64>(first) - base);
                                 });
      if (Memory::kMakerTells && !has_one_document<Memory>(item)) give(false, [](SharedPtr) {});
    });
  }

 private:
  LAZYROPE_DEVICE void make(int64 positions) {
    give(true, [positions](SharedPtr rotation) {
      share_rotation<Spec, typename Memory::RotationMakers>(rotation, Spec::frequencies(),
                                                            positions);
    });
  }
  template <class Make>
  LAZYROPE_DEVICE void give(bool exists, const Make& make) {
    rotations_.wait(turn_.at);
    make(memory_.rotation(turn_.at));
    if (Memory::kMakerTells && lane_index() == 0)
      st_shared(memory_.rotation_exists(turn_.at), static_cast<int32>(exists));
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
