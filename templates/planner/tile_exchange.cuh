// Where there are many tiles, each planner of a phase measures some, and notes for the others what
// it has found: all of them would else read all segments.
//
// A counter tells that all notes are there. It counts planners from 0 to their number in one
// launch and back to 0 in the next, so that nobody resets it. Who has waited for long measures all
// tiles itself: the others may not even have begun.
#pragma once

#include "isa/sync.cuh"
#include "planner/tables.cuh"

namespace lazyrope {

class TileExchange {
 public:
  LAZYROPE_DEVICE TileExchange(const PlanScratch& scratch, int32 num_planners)
      : measurements_(scratch.measurements),
        counter_(scratch.counter),
        num_planners_(num_planners) {}

  LAZYROPE_DEVICE bool exist() const { return measurements_ != nullptr; }

  LAZYROPE_DEVICE void write(int32 tile, const TileMeasurement& measurement) const {
    st_global(measurements_ + tile, measurement);
  }
  LAZYROPE_DEVICE TileMeasurement read(int32 tile) const { return ld_global(measurements_ + tile); }

  // One thread, when all of its CTA have written theirs: whether those of all planners are there.
  LAZYROPE_DEVICE bool wait() const {
    const auto count = static_cast<uint32>(num_planners_);
    const uint32 before = atom_acq_rel_gpu_inc(counter_, 2 * count - 1);
    if (before + 1 == count || before + 1 == 2 * count) return true;
    const uint32 complete = before < count ? count : 0;
#pragma unroll 1
    for (int32 poll = 0; poll < kMaxPolls; ++poll)
      if (ld_acquire_gpu(counter_) == complete) return true;
    return false;
  }

 private:
  static constexpr int32 kMaxPolls = 64;  // looks, each of most of a microsecond

  TileMeasurement* measurements_;
  uint32* counter_;
  int32 num_planners_;
};

}  // namespace lazyrope
