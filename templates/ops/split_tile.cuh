// How the CTAs that hold the parts of one tile divide the merging of its rows among them, without
// relying on one another: those that find all parts written merge a slice of the rows each, and the
// last to write its part merges every slice that is left. So no CTA has to be resident with another
// for the launch to end, and usually all of them merge. Rows that are not enough for the threads of
// two CTAs are one slice, which the last merges.
#pragma once

#include "abi/step.h"
#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

// Of the work's 3 * num_ctas counters, number `counter` of the first num_ctas counts a tile's parts
// as they are written, from 0 to count in one launch and from count back to 0 in the next. One for
// each part of a tile, from num_ctas + partial on, tells whether that slice has a CTA: it changes
// between 0 and 1 in every launch. The planner sets all to 0.
class SplitTile {
 public:
  // `row_tasks`: threads that can merge a row together.
  LAZYROPE_DEVICE SplitTile(const WorkView& work, ItemSplit split, int32 num_rows, int32 row_tasks,
                            SharedPtr flag)
      : work_(work),
        split_(split),
        num_rows_(num_rows),
        num_slices_(larger(1, smaller(smaller(split.count, num_rows * row_tasks / block_threads()),
                                      kWarpThreads))),  // a lane claims one
        flag_(flag) {}

  // All threads of the CTA, its part being written: calls merge(first_row, end_row) for each slice
  // that falls to it. `may_wait`: the CTA has nothing else to do.
  template <class Merge>
  LAZYROPE_DEVICE void merge_slices(bool may_wait, const Merge& merge) const {
    const bool is_divided = num_slices_ > 1;
    const uint32 state = arrive(may_wait && is_divided);
    if (state == 0) return;
    const bool repeats = is_divided && (state & kIsLast) != 0;
    const int32 own = split_.index % num_slices_;
    const int32 rows = ceil_div(num_rows_, num_slices_);
    // The last to arrive leaves the others time to take theirs.
#pragma unroll 1
    for (int32 round = 0; round < (repeats ? 2 : 1); ++round) {
      const int32 lane = lane_index();
      uint32 mine = 1;
      if (is_divided)
        mine = claim((round == 0) == (lane == own) && lane < num_slices_, state & kTaken);
#pragma unroll 1
      for (int32 slice = 0; mine != 0; ++slice, mine >>= 1)
        if ((mine & 1) != 0) merge(slice * rows, smaller((slice + 1) * rows, num_rows_));
    }
  }

 private:
  static constexpr uint32 kTaken = 1;  // what marks a taken slice in this launch: 0 or this
  static constexpr uint32 kIsLast = 2;
  static constexpr uint32 kComplete = 4;
  static constexpr int32 kPatience = 64;  // looks, each of most of a microsecond

  // Counts the CTA's part. 0 unless all parts are there.
  LAZYROPE_DEVICE uint32 arrive(bool may_wait) const {
    bar_sync();
    if (thread_index() == 0) {
      uint32* const counter = work_.counters + split_.counter;
      const auto count = static_cast<uint32>(split_.count);
      const uint32 before = atom_acq_rel_gpu_inc(counter, 2 * count - 1);
      const uint32 full = before < count ? count : 0;
      const bool is_last = before + 1 == count || before + 1 == 2 * count;
      bool is_complete = is_last;
#pragma unroll 1
      for (int32 look = 0; may_wait && !is_complete && look < kPatience; ++look)
        is_complete = ld_acquire_gpu(counter) == full;
      const uint32 state = kComplete | (is_last ? kIsLast : 0) | (before < count ? kTaken : 0);
      st_shared(flag_, is_complete ? state : 0);
    }
    bar_sync();
    return ld_shared<uint32>(flag_);
  }

  // Bit i: slice i, that lane i of warp 0 wanted, is now this CTA's.
  LAZYROPE_DEVICE uint32 claim(bool wanted, uint32 taken) const {
    bar_sync();  // the flag is still being read
    if (warp_index() == 0) {
      uint32* const slices = work_.counters + work_.num_ctas + split_.partial;
      const bool got = wanted && atom_relaxed_gpu_exch(slices + lane_index(), taken) != taken;
      const uint32 mine = vote_sync_ballot(got);
      if (lane_index() == 0) st_shared(flag_, mine);
    }
    bar_sync();
    return ld_shared<uint32>(flag_);
  }

  const WorkView& work_;
  ItemSplit split_;
  int32 num_rows_;
  int32 num_slices_;
  SharedPtr flag_;
};

}  // namespace lazyrope
