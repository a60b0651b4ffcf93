// Sums, maxima and searches over the threads of a CTA, for the planner. All threads take part.
#pragma once

#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "ops/lanes.cuh"

namespace lazyrope {

struct CtaSums {
  int32 before;  // sum over the threads before this one
  int32 all;
};

// This function is not inlined: one copy of its code serves all sums. A planner whose code is in no
// cache spends most of its time on loading code.
template <int32 kThreads>
LAZYROPE_DEVICE_CALL CtaSums cta_sums(SharedPtr memory, int32 value) {
  constexpr int32 kWarps = kThreads / kWarpThreads;
  const int32 through = prefix_sum(value);
  if (lane_index() == kWarpThreads - 1) st_shared(memory + warp_index() * 4, through);
  bar_sync();
  const auto of_warp = ld_shared<int32>(memory + lane_index() % kWarps * 4);
  const int32 warps_through = prefix_sum<kWarps>(of_warp);
  return {shfl_sync_idx(warps_through - of_warp, warp_index()) + through - value,
          shfl_sync_idx(warps_through, kWarps - 1)};
}

template <int32 kThreads>
LAZYROPE_DEVICE_CALL int32 cta_max(SharedPtr memory, int32 value) {
  constexpr int32 kWarps = kThreads / kWarpThreads;
  const auto warp_max = [](int32 of_lane) {
#pragma unroll
    for (int mask = kWarpThreads / 2; mask > 0; mask /= 2)
      of_lane = larger(of_lane, shfl_sync_bfly(of_lane, mask));
    return of_lane;
  };
  value = warp_max(value);
  if (lane_index() == 0) st_shared(memory + warp_index() * 4, value);
  bar_sync();
  return warp_max(ld_shared<int32>(memory + smaller(lane_index(), kWarps - 1) * 4));
}

// Scans over a CTA whose number of warps is a power of two. The caller synchronises the CTA between
// two scans, because they use the same shared memory.
template <int32 kThreads>
class CtaScan {
 public:
  static constexpr int32 kWarps = kThreads / kWarpThreads;
  static_assert(kWarps <= kWarpThreads && (kWarps & (kWarps - 1)) == 0);
  static constexpr int32 kBytes = kWarps * 4;

  LAZYROPE_DEVICE explicit CtaScan(SharedPtr memory) : memory_(memory) {}

  LAZYROPE_DEVICE CtaSums sums(int32 value) const { return cta_sums<kThreads>(memory_, value); }

  // Returns the greatest value of all threads.
  LAZYROPE_DEVICE int32 max(int32 value) const {
    return warp_uniform(cta_max<kThreads>(memory_, value));
  }

 private:
  SharedPtr memory_;
};

// Returns the first index in [0, count) whose value exceeds `target`, or count. The values must not
// decrease. Three values are loaded at a time, because a search waits for its loads most of the
// time.
template <class T, class Value>
LAZYROPE_DEVICE int32 upper_bound(int32 count, T target, const Value& value) {
  const uint32 exponent = (float_as_bits(static_cast<float>(count)) >> 23) - 127;
  int32 low = 0;
#pragma unroll 1
  for (int32 step = count < 1 ? 0 : 1 << smaller(exponent & ~1u, 28u); step > 0; step /= 4) {
    int32 passed = 0;
#pragma unroll
    for (int32 i = 1; i <= 3; ++i) {
      const int32 end = low + i * step;
      const bool exceeds = value(smaller(end, count) - 1) > target;
      passed += end <= count && !exceeds ? 1 : 0;
    }
    low += passed * step;
  }
  return low;
}

}  // namespace lazyrope
