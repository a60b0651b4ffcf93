// Sums and searches over the lanes of a warp, or of each group of kLanes neighbours, a power of
// two. All lanes of the warp take part.
#pragma once

#include "isa/launch.cuh"
#include "isa/math.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

// What all lanes of the warp have alike, so that the compiler knows it, too: lanes that go where it
// says stay together. Where they might not, for all that the compiler can tell, every exchange
// between them takes eight instructions instead of one.
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

// The lane's number in its group.
template <int kLanes>
LAZYROPE_DEVICE int32 group_lane() {
  return lane_index() % kLanes;
}

// The value of a lane of the same group.
template <int kLanes>
LAZYROPE_DEVICE int32 group_shfl(int32 value, int32 lane) {
  return shfl_sync_idx(value, first_lane<kLanes>() + lane);
}

// Of a number from 1 on; of large ones just below a power of two maybe that of this.
LAZYROPE_DEVICE int32 floor_log2(int32 number) {
  return static_cast<int32>(float_as_bits(static_cast<float>(number)) >> 23) - 127;
}

// Which of bits is the lowest that is 1. Not all are 0.
LAZYROPE_DEVICE int32 lowest_one(uint32 bits) {
  const uint32 one = bits & (~bits + 1);
  return static_cast<int32>(float_as_bits(static_cast<float>(one)) >> 23) - 127;
}

// Of bits that are the lowest and nothing else.
LAZYROPE_DEVICE int32 count_ones(uint32 lowest) {
  if (lowest == 0) return 0;
  // Of 2^(n - 1), which is a float.
  return static_cast<int32>(float_as_bits(static_cast<float>((lowest >> 1) + 1)) >> 23) - 126;
}

// Of a ballot: what the lanes of the group have said.
template <int kLanes>
LAZYROPE_DEVICE uint32 of_group(uint32 ballot) {
  return ballot >> first_lane<kLanes>() & ((1u << kLanes) - 1);
}

// Inclusive.
template <int kLanes = kWarpThreads>
LAZYROPE_DEVICE int32 prefix_sum(int32 value) {
#pragma unroll
  for (int delta = 1; delta < kLanes; delta *= 2) {
    const int32 below = shfl_sync_up(value, delta);
    if (lane_index() % kLanes >= delta) value += below;
  }
  return value;
}

// The first lane whose value exceeds the `target` of the lane that asks, or the last; the values
// must not decrease from lane to lane.
LAZYROPE_DEVICE int32 upper_bound_lane(int32 value, int32 target) {
  int32 lane = 0;
#pragma unroll
  for (int step = kWarpThreads / 2; step > 0; step /= 2)
    if (shfl_sync_idx(value, lane + step - 1) <= target) lane += step;
  return lane;
}

// The same of each group of lanes, which have the same target; counted in the group.
template <int kLanes>
LAZYROPE_DEVICE int32 upper_bound_of_group(int32 value, int32 target) {
  return smaller(count_ones(of_group<kLanes>(vote_sync_ballot(value <= target))), kLanes - 1);
}

// How far apart are the first values that a search among `count`, at least 1, looks at: a power of
// kLanes that is not less than count / kLanes.
template <int kLanes>
LAZYROPE_DEVICE int32 search_step(int32 count) {
  static_assert((kLanes & (kLanes - 1)) == 0);
  const int32 log_lanes = floor_log2(kLanes);
  return 1 << floor_log2(larger(count - 1, 1)) / log_lanes * log_lanes;
}

// First index in [0, count) of which is_behind(i) is true, as it is of all that follow, else count:
// each group of lanes searches for itself. count and its search_step are the same for all.
template <int kLanes, class IsPast>
LAZYROPE_DEVICE int32 lower_bound_by_lanes(int32 count, int32 step, const IsPast& is_past) {
  int32 low = 0;
#pragma unroll 1
  for (; step > 0; step /= kLanes) {
    const int32 end = low + (lane_index() % kLanes + 1) * step;
    const bool stops = is_past(smaller(end, count) - 1);
    const uint32 passed = vote_sync_ballot(end <= count && !stops);
    low += count_ones(of_group<kLanes>(passed)) * step;
  }
  return low;
}

}  // namespace lazyrope
