// Sums and searches over the lanes of a warp, or of each group of kLanes neighbours, a power of
// two. All lanes of the warp take part.
#pragma once

#include "isa/launch.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

template <int kLanes>
LAZYROPE_DEVICE int32 first_lane() {
  if constexpr (kLanes == kWarpThreads)
    return 0;
  else
    return lane_index() & ~(kLanes - 1);
}

// Inclusive.
template <int kLanes = kWarpThreads, class T>
LAZYROPE_DEVICE T prefix_sum(T value) {
#pragma unroll
  for (int delta = 1; delta < kLanes; delta *= 2) {
    const T below = shfl_sync_up(value, delta);
    if (lane_index() % kLanes >= delta) value += below;
  }
  return value;
}

// The first lane of the group whose value exceeds `target`, counted in the group, or the last; the
// values must not decrease from lane to lane.
template <int kLanes = kWarpThreads>
LAZYROPE_DEVICE int32 upper_bound_lane(int32 value, int32 target) {
  int32 lane = 0;
#pragma unroll
  for (int step = kLanes / 2; step > 0; step /= 2)
    if (shfl_sync_idx(value, first_lane<kLanes>() + lane + step - 1) <= target) lane += step;
  return lane;
}

}  // namespace lazyrope
