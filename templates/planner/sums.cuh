// Step 5 of planning: exclusive prefix sums over columns of the table of tiles. Each has one entry
// more than there are tiles, which holds the sum of all.
#pragma once

#include "ops/cta_scan.cuh"
#include "planner/tables.cuh"

namespace lazyrope {

// The sum of a column, and the bits that it has lost: its values were divided by 2^lost_bits.
struct TableSum {
  int32 total;
  int32 lost_bits;
};

// Stores the prefix sums of two values a lane, those of the entries 2 * lane and 2 * lane + 1. All
// lanes of a warp take part. Entries from `count` on have the value 0. Returns the sum of all.
LAZYROPE_DEVICE int32 store_few_sums(int32 first, int32 second, const Column<int32>& sums,
                                     int32 count) {
  const int32 i = 2 * lane_index();
  const int32 through = prefix_sum(first + second);
  if (i < count) sums.set(i, through - second - first);
  if (i + 1 < count) sums.set(i + 1, through - second);
  const int32 all = shfl_sync_idx(through, kWarpThreads - 1);
  if (lane_index() == 0) sums.set(count, all);
  bar_warp_sync();
  return all;
}

// Sums at most two values a lane. All lanes of a warp take part. Returns the sum of all values.
LAZYROPE_DEVICE int32 sum_of_few(const Column<int32>& values, const Column<int32>& sums,
                                 int32 count) {
  const int32 i = 2 * lane_index();
  return store_few_sums(i < count ? values.get(i) : 0, i + 1 < count ? values.get(i + 1) : 0, sums,
                        count);
}

// Sums any number of values, by all threads of the CTA. If the sum of all exceeds `max`, all sums
// are divided by 2^lost_bits.
template <int32 kThreads>
LAZYROPE_DEVICE_CALL TableSum table_sum(CtaScan<kThreads> scan, Column<int32> values,
                                        Column<int32> sums, int32 count, int32 max) {
  int32 lost_bits = 0;
#pragma unroll 1
  while (true) {
    int64 passed = 0;
#pragma unroll 1
    for (int32 first = 0; first < count; first += kThreads) {
      const int32 i = first + thread_index();
      const CtaSums of = scan.sums(i < count ? values.get(i) : 0);
      if (i < count) sums.set(i, static_cast<int32>((passed + of.before) >> lost_bits));
      passed += of.all;
      if (i == count - 1) sums.set(count, static_cast<int32>(passed >> lost_bits));
      bar_sync();
    }
    if (passed >> lost_bits <= max) return {static_cast<int32>(passed >> lost_bits), lost_bits};
#pragma unroll 1
    while (passed >> lost_bits > max) ++lost_bits;
  }
}

}  // namespace lazyrope
