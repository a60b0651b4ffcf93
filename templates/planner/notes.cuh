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

class PlanNotes {
 public:
  LAZYROPE_DEVICE PlanNotes(const PlanScratch& scratch, int32 num_planners)
      : notes_(scratch.notes), counter_(scratch.counter), num_planners_(num_planners) {}

  LAZYROPE_DEVICE bool exist() const { return notes_ != nullptr; }

  LAZYROPE_DEVICE void write(int32 tile, const TileNote& note) const {
    st_global(notes_ + tile, note);
  }
  LAZYROPE_DEVICE TileNote read(int32 tile) const { return ld_global(notes_ + tile); }

  // One thread, when all of its CTA have written theirs: whether those of all planners are there.
  LAZYROPE_DEVICE bool wait() const {
    const auto count = static_cast<uint32>(num_planners_);
    const uint32 before = atom_acq_rel_gpu_inc(counter_, 2 * count - 1);
    if (before + 1 == count || before + 1 == 2 * count) return true;
    const uint32 complete = before < count ? count : 0;
#pragma unroll 1
    for (int32 look = 0; look < kPatience; ++look)
      if (ld_acquire_gpu(counter_) == complete) return true;
    return false;
  }

 private:
  static constexpr int32 kPatience = 64;  // looks, each of most of a microsecond

  TileNote* notes_;
  uint32* counter_;
  int32 num_planners_;
};

}  // namespace lazyrope
