// Sums and searches over the lanes of a warp, or over each group of kLanes neighbours, a power of
// two. All lanes of the warp take part.
#pragma once

#include "isa/launch.cuh"
#include "isa/math.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

// Returns a value that all lanes of the warp have, so that the compiler knows that it is uniform.
// Lanes that branch on it stay together. After another branch the compiler makes eight instructions
// of each exchange, not one.
template <class T>
LAZYROPE_DEVICE T warp_uniform(T value) {
  return shfl_sync_idx(value, 0);
}
LAZYROPE_DEVICE bool warp_uniform(bool value) { return vote_sync_any(value); }

template <int kLanes>
LAZYROPE_DEVICE int32 first_lane() {
  static_assert(kLanes < kWarpThreads);
  return lane_index() & ~(kLanes - 1);
}

// Returns the lane's index in its group.
template <int kLanes>
LAZYROPE_DEVICE int32 group_lane() {
  return lane_index() % kLanes;
}

// Returns the value of a lane of the same group.
template <int kLanes>
LAZYROPE_DEVICE int32 group_shfl(int32 value, int32 lane) {
  return shfl_sync_idx(value, first_lane<kLanes>() + lane);
}

// Returns floor(log2(number)) for a number of at least 1. The number is first rounded to a float,
// so a large one just below a power of two may count as that power.
LAZYROPE_DEVICE int32 floor_log2(int32 number) {
  return static_cast<int32>(float_as_bits(static_cast<float>(number)) >> 23) - 127;
}

// Returns the index of the lowest bit that is set. `bits` is not 0.
LAZYROPE_DEVICE int32 lowest_one(uint32 bits) {
  const uint32 one = bits & (~bits + 1);
  return static_cast<int32>(float_as_bits(static_cast<float>(one)) >> 23) - 127;
}

// Returns the number of bits set in a mask of the form 2^n - 1.
LAZYROPE_DEVICE int32 count_ones(uint32 lowest) {
  if (lowest == 0) return 0;
  // 2^(n - 1) is exact as a float.
  return static_cast<int32>(float_as_bits(static_cast<float>((lowest >> 1) + 1)) >> 23) - 126;
}

// Returns the bits of a ballot that the lanes of the caller's group have cast.
template <int kLanes>
LAZYROPE_DEVICE uint32 group_bits(uint32 ballot) {
  return ballot >> first_lane<kLanes>() & ((1u << kLanes) - 1);
}

// Returns the sum of the group's values up to and including the lane's own.
template <int kLanes = kWarpThreads>
LAZYROPE_DEVICE int32 prefix_sum(int32 value) {
#pragma unroll
  for (int delta = 1; delta < kLanes; delta *= 2) {
    const int32 lower = shfl_sync_up(value, delta);
    if (lane_index() % kLanes >= delta) value += lower;
  }
  return value;
}

// Returns the first lane whose value exceeds the caller's `target`, or the last lane if there is
// none. Values must not decrease from lane to lane.
LAZYROPE_DEVICE int32 upper_bound_lane(int32 value, int32 target) {
  int32 lane = 0;
#pragma unroll
  for (int step = kWarpThreads / 2; step > 0; step /= 2)
    if (shfl_sync_idx(value, lane + step - 1) <= target) lane += step;
  return lane;
}

// Does the same inside each group and returns an index in the group. All lanes of a group have the
// same target.
template <int kLanes>
LAZYROPE_DEVICE int32 group_upper_bound(int32 value, int32 target) {
  return smaller(count_ones(group_bits<kLanes>(vote_sync_ballot(value <= target))), kLanes - 1);
}

// Returns the distance between the values that lower_bound_by_lanes() tests first, if there are
// `count` >= 1 values: a power of kLanes that is at least count / kLanes.
template <int kLanes>
LAZYROPE_DEVICE int32 search_step(int32 count) {
  static_assert((kLanes & (kLanes - 1)) == 0);
  const int32 log_lanes = floor_log2(kLanes);
  return 1 << floor_log2(larger(count - 1, 1)) / log_lanes * log_lanes;
}

// Returns the first index i in [0, count) for which is_past(i) is true, or count. is_past must be
// true for all later indices, too. Each group of lanes has its own is_past; `count` and `step`,
// which is search_step(count), are the same in all groups.
template <int kLanes, class IsPast>
LAZYROPE_DEVICE int32 lower_bound_by_lanes(int32 count, int32 step, const IsPast& is_past) {
  int32 low = 0;
#pragma unroll 1
  for (; step > 0; step /= kLanes) {
    const int32 end = low + (lane_index() % kLanes + 1) * step;
    const bool stops = is_past(smaller(end, count) - 1);
    const uint32 passed = vote_sync_ballot(end <= count && !stops);
    low += count_ones(group_bits<kLanes>(passed)) * step;
  }
  return low;
}

}  // namespace lazyrope
