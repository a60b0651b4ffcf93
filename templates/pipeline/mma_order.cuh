// Two warpgroups that do a thing in turns, so that each does something else while the other does
// that: what both would do at once takes both longer.
#pragma once

#include "isa/sync.cuh"
#include "isa/wgmma.cuh"

namespace lazyrope {

// By barriers kBarrier and kBarrier + 1, that a group may go on. Each group takes as many turns.
template <int kBarrier>
class MmaOrder {
  static constexpr int32 kThreads = 2 * kWarpgroupThreads;

 public:
  // Group 0 begins. The compiler is shown that all lanes have the same group.
  LAZYROPE_DEVICE explicit MmaOrder(int32 group) : group_(shfl_sync_idx(group, 0)) {
    if (group_ == 1) order_arrive();
  }

  LAZYROPE_DEVICE int32 group() const { return group_; }

  LAZYROPE_DEVICE void order_wait() const {
    const int32 own = kBarrier + group_;
    bar_sync(own, kThreads);
  }
  LAZYROPE_DEVICE void order_arrive() const {
    const int32 other = kBarrier + 1 - group_;
    bar_arrive(other, kThreads);
  }

 private:
  int32 group_;
};

}  // namespace lazyrope
