// How the CTAs that hold the parts of one tile divide the merging of its rows among them, without
// relying on one another: those that find all parts written merge a slice each, and the last to
// write its part merges every slice that is left. So no CTA has to be resident with another for the
// launch to end, and usually all of them merge. What one CTA can fetch at once is one slice, which
// the last merges.
#pragma once

#include "abi/step.h"
#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

// Of the work's counters number `counter` counts a tile's parts as they are written, from 0 to
// count in one launch and from count back to 0 in the next. One for each part of a tile, from
// num_ctas + partial on, tells whether that slice has a CTA: it changes between 0 and 1 in every
// launch. The planner sets all to 0.
class SplitTile {
 public:
  static constexpr int32 kFlagBytes = 8;

  // Merging consists of num_tasks tasks, each of which fetches something of every part.
  LAZYROPE_DEVICE SplitTile(const WorkView& work, ItemSplit split, int32 num_tasks, SharedPtr flags)
      : work_(work),
        split_(split),
        num_tasks_(num_tasks),
        num_slices_(slices(split.count, num_tasks)),
        flags_(flags) {}

  // All threads of the CTA, its part being written: calls merge(first, end, confirm) for each slice
  // of tasks that falls to it. The results are this CTA's to write if confirm(), which all threads
  // call, says so. `may_wait`: the CTA has nothing else to do.
  template <class Merge>
  LAZYROPE_DEVICE void merge_slices(bool may_wait, const Merge& merge) const {
    const bool is_divided = num_slices_ > 1;
    const uint32 state = arrive(may_wait && is_divided);
    if (state == 0) return;
    const int32 own = is_divided ? split_.index % num_slices_ : 0;
    if (is_divided) claim_own(own, state & kTaken);
    merge_slice(own, merge, [&] {
      if (is_divided) bar_sync();
      return !is_divided || ld_shared<uint32>(flags_ + 4) != 0;
    });
    if (!is_divided || (state & kIsLast) == 0) return;
    // The last to arrive has left the others time to take theirs.
    uint32 left = claim_all(state & kTaken);
#pragma unroll 1
    for (int32 slice = 0; left != 0; ++slice, left >>= 1)
      if ((left & 1) != 0) merge_slice(slice, merge, [] { return true; });
  }

 private:
  static constexpr uint32 kTaken = 1;  // what marks a taken slice in this launch: 0 or this
  static constexpr uint32 kIsLast = 2;
  static constexpr uint32 kComplete = 4;
  static constexpr int32 kPatience = 64;    // looks, each of most of a microsecond
  static constexpr int32 kFetches = 16;     // of a thread, at once
  static constexpr int32 kMostSlices = 32;  // a lane claims one

  LAZYROPE_DEVICE static int32 slices(int32 count, int32 num_tasks) {
    return num_tasks * count <= kFetches * block_threads()
               ? 1
               : smaller(smaller(count, num_tasks), kMostSlices);
  }

  template <class Merge, class Confirm>
  LAZYROPE_DEVICE void merge_slice(int32 slice, const Merge& merge, const Confirm& confirm) const {
    merge(slice * num_tasks_ / num_slices_, (slice + 1) * num_tasks_ / num_slices_, confirm);
  }

  LAZYROPE_DEVICE uint32* slice_flag(int32 slice) const {
    return work_.counters + work_.num_ctas + split_.partial + slice;
  }

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
      st_shared(flags_, is_complete ? state : 0);
    }
    bar_sync();
    return ld_shared<uint32>(flags_);
  }

  // One thread, while the others already fetch what they are to merge.
  LAZYROPE_DEVICE void claim_own(int32 slice, uint32 taken) const {
    if (thread_index() == 0)
      st_shared(flags_ + 4, atom_relaxed_gpu_exch(slice_flag(slice), taken) != taken ? 1u : 0u);
  }

  // Bit i: slice i is now this CTA's.
  LAZYROPE_DEVICE uint32 claim_all(uint32 taken) const {
    bar_sync();  // the flag is still being read
    if (warp_index() == 0) {
      const int32 lane = lane_index();
      const bool got =
          lane < num_slices_ && atom_relaxed_gpu_exch(slice_flag(lane), taken) != taken;
      const uint32 mine = vote_sync_ballot(got);
      if (lane == 0) st_shared(flags_ + 4, mine);
    }
    bar_sync();
    return ld_shared<uint32>(flags_ + 4);
  }

  const WorkView& work_;
  ItemSplit split_;
  int32 num_tasks_;
  int32 num_slices_;
  SharedPtr flags_;
};

}  // namespace lazyrope
