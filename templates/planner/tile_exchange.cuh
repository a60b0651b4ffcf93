// Step 3 of planning, where there are many tiles: each planner CTA of a phase measures some tiles
// and gives the measurements to the others in global memory. Otherwise every CTA would read all
// segments.
//
// A counter tells that all measurements are written. It counts planners from 0 to num_planners in
// one launch, and on until it wraps to 0 in the next. So nothing has to reset it. A CTA that has
// polled for long measures all tiles itself, because the other CTAs may not even have begun.
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

  // Returns true once the measurements of all planners are written, or false after kMaxPolls polls.
  // One thread calls it, after all threads of its CTA have written theirs.
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
  static constexpr int32 kMaxPolls = 64;  // each poll takes most of a microsecond

  TileMeasurement* measurements_;
  uint32* counter_;
  int32 num_planners_;
};

}  // namespace lazyrope
