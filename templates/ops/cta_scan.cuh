// Sums and searches over the threads of a CTA, for the planner.
#pragma once

#include "isa/memory.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

template <class T>
struct Prefix {
  T before;  // sum over the threads before this one
  T total;   // over all
};

// All threads of the CTA, a whole number of warps; `memory` holds one T for each.
template <class T>
class CtaScan {
 public:
  LAZYROPE_DEVICE explicit CtaScan(SharedPtr memory) : memory_(memory) {}

  LAZYROPE_DEVICE Prefix<T> operator()(T value) const {
    T through = value;
#pragma unroll
    for (int delta = 1; delta < kWarpThreads; delta *= 2) {
      const T below = shfl_sync_up(through, delta);
      if (lane_index() >= delta) through += below;
    }
    bar_sync();  // the results of the scan before are still being read
    if (lane_index() == kWarpThreads - 1) st_shared(of_warp(warp_index()), through);
    bar_sync();
    Prefix<T> sum = {through - value, 0};
#pragma unroll 1
    for (int32 warp = 0; warp < block_threads() / kWarpThreads; ++warp) {
      const T t = ld_shared<T>(of_warp(warp));
      if (warp < warp_index()) sum.before += t;
      sum.total += t;
    }
    return sum;
  }

 private:
  LAZYROPE_DEVICE SharedPtr of_warp(int32 warp) const {
    return memory_ + warp * static_cast<int32>(sizeof(T));
  }

  SharedPtr memory_;
};

// First index in [0, count) whose value exceeds `target`, else count; values must not decrease.
template <class T, class Value>
LAZYROPE_DEVICE int32 upper_bound(int32 count, T target, const Value& value) {
  int32 low = 0;
  int32 high = count;
#pragma unroll 1
  while (low < high) {
    const int32 middle = low + (high - low) / 2;
    if (value(middle) > target)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace lazyrope
