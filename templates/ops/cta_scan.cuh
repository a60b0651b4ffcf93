// Sums and searches over the threads of a CTA, for the planner.
#pragma once

#include "isa/memory.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

struct Prefix {
  int64 before;  // sum over the threads before this one
  int64 total;   // over all
};

// All threads of the CTA, a whole number of warps; `memory` holds an int64 for each warp.
LAZYROPE_DEVICE_CALL Prefix cta_scan(SharedPtr memory, int64 value) {
  int64 through = value;
#pragma unroll 1
  for (int delta = 1; delta < kWarpThreads; delta *= 2) {
    const int64 below = shfl_sync_up(through, delta);
    if (lane_index() >= delta) through += below;
  }
  bar_sync();  // the results of the scan before are still being read
  if (lane_index() == kWarpThreads - 1) st_shared(memory + warp_index() * 8, through);
  bar_sync();
  Prefix sum = {through - value, 0};
#pragma unroll 1
  for (int32 warp = 0; warp < block_threads() / kWarpThreads; ++warp) {
    const int64 t = ld_shared<int64>(memory + warp * 8);
    if (warp < warp_index()) sum.before += t;
    sum.total += t;
  }
  return sum;
}

// All threads of the CTA: the greatest value.
LAZYROPE_DEVICE_CALL int32 cta_max(SharedPtr memory, int32 value) {
#pragma unroll 1
  for (int mask = kWarpThreads / 2; mask > 0; mask /= 2)
    value = larger(value, shfl_sync_bfly(value, mask));
  bar_sync();  // the results of the scan before are still being read
  if (lane_index() == 0) st_shared(memory + warp_index() * 8, value);
  bar_sync();
#pragma unroll 1
  for (int32 warp = 0; warp < block_threads() / kWarpThreads; ++warp)
    value = larger(value, ld_shared<int32>(memory + warp * 8));
  return value;
}

template <class T>
LAZYROPE_DEVICE T value_at(const T* values, int32 i) {
  return ld_global(values + i);
}
LAZYROPE_DEVICE int32 value_at(SharedPtr values, int32 i) {
  return ld_shared<int32>(values + i * 4);
}

// First index in [0, count) whose value exceeds `target`, else count; values, in global memory or
// int32 in shared memory, must not decrease.
template <class Values, class T>
LAZYROPE_DEVICE_CALL int32 upper_bound(Values values, int32 count, T target) {
  int32 low = 0;
  int32 high = count;
#pragma unroll 1
  while (low < high) {
    const int32 middle = low + (high - low) / 2;
    if (value_at(values, middle) > target)
      high = middle;
    else
      low = middle + 1;
  }
  return low;
}

}  // namespace lazyrope
