// Makes two warpgroups issue their products alternately, like the warpgroup ping-pong of
// FlashAttention-3: one warpgroup computes its softmax while the other's products run. If both
// issued products at the same time, the products of each would take longer.
//
// | barrier      | who arrives (256 threads)                  | who waits | what it protects |
// |--------------|--------------------------------------------|-----------|-------------------------|
// | kBarrier     | group 0 by bar.sync, group 1 by bar.arrive | group 0   | no data: when group 0 |
// |              |                                            |           | may issue its products
// | | kBarrier + 1 | group 1 by bar.sync, group 0 by bar.arrive | group 1   | no data: when group 1
// | |              |                                            |           | may issue its
// products  |
//
// order_wait() synchronizes the warps of the calling group, too: SelfRotatedQueries relies on that.
#pragma once

#include "isa/sync.cuh"
#include "isa/wgmma.cuh"

namespace lazyrope {

// Both groups must call order_wait() and order_arrive() equally often.
template <int kBarrier>
class MmaOrder {
  static constexpr int32 kThreads = 2 * kWarpgroupThreads;

 public:
  // Group 0 goes first. The shuffle shows the compiler that all lanes have the same group.
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
