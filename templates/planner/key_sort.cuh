// Sorts the share kernel's keys over the threads of its CTA.
#pragma once

#include "abi/share.h"
#include "isa/sync.cuh"
#include "ops/lanes.cuh"
#include "planner/tables.cuh"

namespace lazyrope {

// Returns the value of the lane whose index differs in the bits of `mask`.
LAZYROPE_DEVICE uint64 from_partner(uint64 value, int32 mask) {
  const auto low = shfl_sync_bfly(static_cast<int32>(value), mask);
  const auto high = shfl_sync_bfly(static_cast<int32>(value >> 32), mask);
  return static_cast<uint64>(static_cast<uint32>(high)) << 32 | static_cast<uint32>(low);
}

template <int32 kThreads>
class KeySort {
 public:
  LAZYROPE_DEVICE explicit KeySort(Column<uint64> key) : key_(key) {}

  // Sorts the first `count` keys, a power of two that is at least kShareChunk, by a bitonic
  // network. The passes over neighbours at a distance below kShareChunk are made in registers. All
  // threads of the CTA take part, and have then written what they wrote before.
  LAZYROPE_DEVICE void sort(int32 count) const {
    sort_chunks(count, 2, kShareChunk);
#pragma unroll 1
    for (int32 size = 2 * kShareChunk; size <= count; size *= 2) {
#pragma unroll 1
      for (int32 step = size / 2; step >= kShareChunk; step /= 2) {
        bar_sync();
#pragma unroll 1
        for (int32 i = thread_index(); i < count / 2; i += kThreads) {
          const int32 low = 2 * i - (i & (step - 1));
          exchange(low, low + step, (low & size) == 0);
        }
      }
      bar_sync();
      sort_chunks(count, size, size);
    }
    bar_sync();
  }

 private:
  LAZYROPE_DEVICE void exchange(int32 low, int32 high, bool ascends) const {
    const uint64 of_low = key_.get(low);
    const uint64 of_high = key_.get(high);
    if ((of_high < of_low) != ascends) return;
    key_.set(low, of_high);
    key_.set(high, of_low);
  }

  // Makes the passes within chunks, for the sizes first_size to last_size. A warp has one chunk at
  // a time, a lane the keys `lane` and `lane` + 32 of it.
  LAZYROPE_DEVICE void sort_chunks(int32 count, int32 first_size, int32 last_size) const {
    static_assert(kShareChunk == 2 * kWarpThreads);
#pragma unroll 1
    for (int32 chunk = warp_index() * kShareChunk; chunk < count;
         chunk += kThreads / kWarpThreads * kShareChunk) {
      const int32 low = chunk + lane_index();
      const int32 high = low + kWarpThreads;
      uint64 of_low = key_.get(low);
      uint64 of_high = key_.get(high);
#pragma unroll 1
      for (int32 size = first_size; size <= last_size; size *= 2) {
        if (size >= kShareChunk && (of_high < of_low) == ((low & size) == 0)) {
          const uint64 swapped = of_low;
          of_low = of_high;
          of_high = swapped;
        }
#pragma unroll 1
        for (int32 step = smaller(size, kShareChunk / 2) / 2; step > 0; step /= 2) {
          of_low = exchanged(of_low, step, (low & size) == 0);
          of_high = exchanged(of_high, step, (high & size) == 0);
        }
      }
      key_.set(low, of_low);
      key_.set(high, of_high);
    }
  }
  // Returns the lane's key after the exchange with the lane at a distance of `step`.
  LAZYROPE_DEVICE static uint64 exchanged(uint64 key, int32 step, bool ascends) {
    const uint64 other = from_partner(key, step);
    const bool takes_less = ((lane_index() & step) == 0) == ascends;
    return (other < key) == takes_less ? other : key;
  }

  Column<uint64> key_;
};

}  // namespace lazyrope
