// Sums and searches over the threads of a CTA, for the planner.
#pragma once

#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

LAZYROPE_DEVICE int64 shfl_sync_bfly_64(int64 value, int32 mask) {
  const auto bits = static_cast<uint64>(value);
  const uint64 low = shfl_sync_bfly(static_cast<uint32>(bits), mask);
  const uint64 high = shfl_sync_bfly(static_cast<uint32>(bits >> 32), mask);
  return static_cast<int64>(high << 32 | low);
}

// Sums over the threads before each, by all threads of the CTA, a whole number of warps. A warp
// whose threads have values adds up those of the warps before it by itself; the others do nothing.
template <int32 kThreads>
class CtaScan {
 public:
  static constexpr int32 kBytes = kThreads * 8 + 16;

  LAZYROPE_DEVICE explicit CtaScan(SharedPtr memory) : memory_(memory) {}

  // The first `count` threads have values, or all. Once all threads have met after that, total() is
  // the sum of all, and there may be another scan.
  LAZYROPE_DEVICE int64 sum_before(int64 value, int32 count) const {
    const int32 thread = thread_index();
    count = smaller(count, kThreads);
    if (thread >= count) value = 0;
    st_shared(memory_ + thread * 8, value);
    bar_sync();
    const int32 first = warp_index() * kWarpThreads;
    if (first >= count) return 0;
    int64 warps_before = 0;
#pragma unroll 4
    for (int32 i = lane_index(); i < first; i += kWarpThreads)
      warps_before += ld_shared<int64>(memory_ + i * 8);
    int64 through = value;
#pragma unroll
    for (int delta = 1; delta < kWarpThreads; delta *= 2) {
      const int64 below = shfl_sync_up(through, delta);
      if (lane_index() >= delta) through += below;
      warps_before += shfl_sync_bfly_64(warps_before, delta);
    }
    if (thread == count - 1) st_shared(memory_ + kThreads * 8, warps_before + through);
    return warps_before + through - value;
  }
  LAZYROPE_DEVICE int64 total() const { return ld_shared<int64>(memory_ + kThreads * 8); }

  // The greatest of all threads' values. All threads have met since the scan before, and meet again
  // before the next.
  LAZYROPE_DEVICE int32 max(int32 value) const {
    value = warp_max(value);
    if (lane_index() == 0) st_shared(memory_ + warp_index() * 4, value);
    bar_sync();
    return warp_max(
        ld_shared<int32>(memory_ + smaller(lane_index(), kThreads / kWarpThreads - 1) * 4));
  }

 private:
  LAZYROPE_DEVICE static int32 warp_max(int32 value) {
#pragma unroll
    for (int mask = kWarpThreads / 2; mask > 0; mask /= 2)
      value = larger(value, shfl_sync_bfly(value, mask));
    return value;
  }

  SharedPtr memory_;
};

// First index in [0, count) whose value exceeds `target`, else count; value(i) must not decrease.
// Three values are looked at together, for what takes time is the way to each.
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
