// Divides the combining of a split tile's rows among the CTAs that hold its KV splits. No CTA
// relies on another to be running.
//
// The combiners are the CTAs of the first num_combiners splits. As far as the planner can tell,
// each of them has no other work after its split. Each combiner has some batches of the rows
// (TileCombiner) and polls the partial results themselves, so that no counter comes between writing
// and reading. A combiner that has polled for long abandons its batches, because the other CTAs may
// not even have begun. Each CTA also counts its split when it has written it. The CTA that counts
// the last split combines all abandoned batches: it knows that all partial results are on their
// way.
#pragma once

#include "abi/step.h"
#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "ops/lanes.cuh"
#include "ops/team.cuh"

namespace lazyrope {

// WorkView::counters has the counters. Counter split.counter counts the splits of a tile that are
// written: from 0 to split.count in one launch, which is even, and on in the next, which is odd,
// until it wraps to 0 at 2 * split.count. Counter num_ctas + split.partial + i is the mark of
// combiner i. The planner sets all counters to 0.

inline constexpr int32 kFlagBytes = 12;  // shared memory for broadcast()

template <class Team>
class CombineScheduler {
 public:
  LAZYROPE_DEVICE CombineScheduler(const WorkView& work, KvSplit split, int32 num_combiners,
                                   SharedPtr flags)
      : work_(work),
        split_(split),
        num_combiners_(num_combiners),
        flags_(flags),
        warp_(warp_uniform(Team::warp())) {}

  // Combines the batches that fall to this CTA, if any. All threads of the team that computed the
  // split take part, after each has written its columns of the split. Combiner is a TileCombiner.
  // With may_wait, the CTA has nothing else to do.
  //
  // One loop serves all batches of a warp, because polling is much code. The loop first visits the
  // warp's own batches, which are `step` apart. In the CTA that counts the last split, it then
  // visits the batches that others have abandoned.
  template <class Combiner>
  LAZYROPE_DEVICE void combine(const Combiner& tile, bool may_wait) const {
    const int32 num_combiners = smaller(num_combiners_, tile.num_batches());
    const bool is_combiner = split_.index < num_combiners;
    const uint32 before = is_counting_warp() ? count_split() : 0;
    Abandoned abandoned;
    int32 step = larger(num_combiners, 1) * num_warps();
    int32 batch = num_combiners == 0 ? warp_ : split_.index + num_combiners * warp_;
    // The CTA's first batch decides: once all its splits have arrived, all CTAs are writing their
    // splits, and the other batches are sure to arrive.
    bool is_decided = false;
    int32 max_polls = !is_combiner ? 0 : may_wait ? kMaxPolls : 1;
    while (true) {
      // Without the initialisation, its registers would be live in the caller.
      typename Combiner::Combined combined{};
      bool has_arrived = batch < tile.num_batches() && tile.poll(batch, max_polls, combined);
      if (!is_decided &&
          !decide_combining(has_arrived, is_combiner, num_combiners, before, may_wait)) {
        has_arrived = false;
        batch = tile.num_batches();
      }
      is_decided = true;
      max_polls = kUnlimitedPolls;
      if (has_arrived) {
        tile.write_and_clear(combined);
        batch += step;
      }
      if (batch < tile.num_batches()) continue;
      if (!is_counting_warp() || !find_abandoned(abandoned, before, num_combiners)) return;
      batch = abandoned.take();
      step = num_combiners;
    }
  }

 private:
  static constexpr uint32 kIsOdd = 1;  // the launch is odd; a bit of every mark
  static constexpr uint32 kAbandoned = 2;
  static constexpr uint32 kComplete = 4;
  static constexpr uint32 kIsLast = 8;
  static constexpr int32 kMaxPolls = 128;  // each poll takes about half a microsecond
  static constexpr int32 kUnlimitedPolls = 0x7fffffff;

  LAZYROPE_DEVICE static int32 num_warps() { return Team::size() / kWarpThreads; }

  LAZYROPE_DEVICE uint32* mark_of(int32 combiner) const {
    return work_.counters + work_.num_ctas + split_.partial + combiner;
  }

  // The combiners whose abandoned batches the counting warp of the last CTA combines.
  struct Abandoned {
    uint32 combiners = 0;  // one bit per combiner, from `first` on
    int32 first = 0;       // combiner of the lowest bit
    int32 end = 0;         // one past the last combiner whose mark was read

    LAZYROPE_DEVICE bool has_more() const { return combiners != 0; }
    LAZYROPE_DEVICE int32 take() {
#pragma unroll 1
      for (; (combiners & 1) == 0; ++first) combiners >>= 1;
      combiners >>= 1;
      return first++;
    }
  };

  // The team's last warp counts the CTA's split and goes on. It reads the old count only when it
  // has nothing else to do. The atomic is relaxed: it is enough that all splits are on their way.
  LAZYROPE_DEVICE bool is_counting_warp() const { return warp_ == num_warps() - 1; }
  LAZYROPE_DEVICE uint32 count_split() const {
    uint32 before = 0;
    if (lane_index() == 0)
      before = atom_relaxed_gpu_inc(work_.counters + split_.counter,
                                    2 * static_cast<uint32>(split_.count) - 1);
    return before;
  }
  // Tells whether the launch is odd (kIsOdd) and whether the CTA counted the last split (kIsLast).
  // The counting warp calls this function. `before` is the old count.
  LAZYROPE_DEVICE uint32 state(uint32 before) const {
    const auto count = static_cast<uint32>(split_.count);
    before = shfl_sync_idx(before, 0);
    const bool is_last = before + 1 == count || before + 1 == 2 * count;
    return (before < count ? 0 : kIsOdd) | (is_last ? kIsLast : 0);
  }

  // Returns true if the CTA combines batches: its own, or all batches if there are no combiners and
  // it counted the last split. All threads of the team take part.
  LAZYROPE_DEVICE bool decide_combining(bool has_arrived, bool is_combiner, int32 num_combiners,
                                        uint32 before, bool may_wait) const {
    if (!is_combiner && num_combiners > 0) return false;
    bool combines = is_combiner && broadcast(0, Team::rank() == 0, has_arrived ? 1 : 0) != 0;
    if (!combines) {
      const uint32 own_state = is_counting_warp() ? state(before) : 0;
      const uint32 state = broadcast(4, is_counting_warp() && lane_index() == 0, own_state);
      combines = (state & kIsLast) != 0 || (is_combiner && !abandon(state & kIsOdd));
    }
    if (!may_wait) Team::sync();  // the team's next split may use the flags at once
    return combines;
  }

  // Abandons the CTA's batches. Returns false if all splits have been counted meanwhile: the CTA
  // then keeps its batches. All threads of the team take part.
  LAZYROPE_DEVICE bool abandon(uint32 odd) const {
    const bool is_first = Team::rank() == 0;
    uint32 before = 0;
    if (is_first) before = atom_relaxed_gpu_exch(mark_of(split_.index), kAbandoned | odd);
    return broadcast(8, is_first, before) != (kComplete | odd);
  }

  // Returns the sender's value to all threads of the team. Each offset of the flags is used once
  // per split.
  LAZYROPE_DEVICE uint32 broadcast(int32 offset, bool is_sender, uint32 value) const {
    if (is_sender) st_shared(flags_ + offset, value);
    Team::sync();
    return ld_shared<uint32>(flags_ + offset);
  }

  // Finds abandoned batches. Returns false if none are left, or if another CTA counted the last
  // split. The counting warp calls this function.
  LAZYROPE_DEVICE bool find_abandoned(Abandoned& abandoned, uint32 before,
                                      int32 num_combiners) const {
    const uint32 state = this->state(before);
    if ((state & kIsLast) == 0) return false;
    while (!abandoned.has_more() && abandoned.end < num_combiners)
      collect_abandoned(abandoned, state & kIsOdd, num_combiners);
    return abandoned.has_more();
  }

  // Marks 32 combiners as complete, one in each lane, and collects those that had abandoned their
  // batches.
  LAZYROPE_DEVICE void collect_abandoned(Abandoned& abandoned, uint32 odd,
                                         int32 num_combiners) const {
    abandoned.first = abandoned.end;
    abandoned.end += kWarpThreads;
    const int32 combiner = abandoned.first + lane_index();
    // This CTA has not abandoned its own batches, and no other CTA changes its mark. So a plain
    // store suffices, for which nothing waits.
    const bool exists = combiner < num_combiners;
    if (exists && combiner == split_.index) st_global(mark_of(combiner), kComplete | odd);
    abandoned.combiners = vote_sync_ballot(
        exists && combiner != split_.index &&
        atom_relaxed_gpu_exch(mark_of(combiner), kComplete | odd) == (kAbandoned | odd));
  }

  const WorkView& work_;
  KvSplit split_;
  int32 num_combiners_;
  SharedPtr flags_;
  int32 warp_;
};

}  // namespace lazyrope
