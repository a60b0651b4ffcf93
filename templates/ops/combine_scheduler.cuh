// Divides the combining of a split tile's rows among the CTAs that hold its KV splits. No CTA
// relies on another to be running.
//
// A combiner is a CTA whose split ends its work, as far as the planner can tell: the CTAs of the
// first num_combiners splits. Each combiner has some batches of the rows (TileCombiner) and polls
// the partial results themselves, so that no counter comes between writing and reading. A combiner
// that has polled for long abandons its batches, because the other CTAs may not even have begun.
// Independently, each CTA counts its split when it is written. The CTA that counts the last split
// combines all abandoned batches: it knows that all partial results are on their way.
#pragma once

#include "abi/step.h"
#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "ops/lanes.cuh"
#include "ops/team.cuh"

namespace lazyrope {

// Counter `counter` of the work counts a tile's splits as they are written: from 0 to `count` in
// one launch, and on until it wraps to 0 in the next. Launches are odd or even by it. Counter
// num_ctas + partial + i is the mark of combiner i. The planner sets all counters to 0.
inline constexpr int32 kFlagBytes = 12;

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

  // Combines what this CTA has to. All threads of the team that made the split take part, after
  // each has written its columns of it. Combiner is TileCombiner. `may_wait`: the CTA has nothing
  // else to do.
  //
  // One loop serves all batches of a warp, because polling is much code. It goes first through the
  // warp's own batches, every step-th; then, in the last CTA, through those that others have
  // abandoned.
  template <class Combiner>
  LAZYROPE_DEVICE void combine(const Combiner& tile, bool may_wait) const {
    const int32 num_combiners = smaller(num_combiners_, tile.num_batches());
    const bool is_combiner = split_.index < num_combiners;
    const uint32 before = counts() ? count() : 0;
    Abandoned abandoned;
    int32 step = larger(num_combiners, 1) * num_warps();
    int32 batch = num_combiners == 0 ? warp_ : split_.index + num_combiners * warp_;
    // The CTA's first batch decides: once all splits of it are there, all CTAs are writing theirs,
    // and the other batches are sure to come.
    bool is_decided = false;
    int32 max_polls = !is_combiner ? 0 : may_wait ? kMaxPolls : 1;
    while (true) {
      // It is initialised here, or its registers would be live in the caller.
      typename Combiner::Combined combined{};
      bool is_there = batch < tile.num_batches() && tile.poll(batch, max_polls, combined);
      if (!is_decided &&
          !decide_combining(is_there, is_combiner, num_combiners, before, may_wait)) {
        is_there = false;
        batch = tile.num_batches();
      }
      is_decided = true;
      max_polls = kUnlimitedPolls;
      if (is_there) {
        tile.write_and_clear(combined);
        batch += step;
      }
      if (batch < tile.num_batches()) continue;
      if (!counts() || !find_abandoned(abandoned, before, num_combiners)) return;
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

  // Combiners that have abandoned their batches to the last CTA's counting warp.
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

  // The team's last warp counts the CTA's split and goes on. Its first lane looks at the result
  // when it has nothing else to do. The atomic is relaxed: it is enough that all splits are on
  // their way.
  LAZYROPE_DEVICE bool counts() const { return warp_ == num_warps() - 1; }
  LAZYROPE_DEVICE uint32 count() const {
    uint32 before = 0;
    if (lane_index() == 0)
      before = atom_relaxed_gpu_inc(work_.counters + split_.counter,
                                    2 * static_cast<uint32>(split_.count) - 1);
    return before;
  }
  // Returns whether the launch is odd (kIsOdd) and the CTA is the last (kIsLast). The counting warp
  // calls it.
  LAZYROPE_DEVICE uint32 state(uint32 before) const {
    const auto count = static_cast<uint32>(split_.count);
    before = shfl_sync_idx(before, 0);
    const bool is_last = before + 1 == count || before + 1 == 2 * count;
    return (before < count ? 0 : kIsOdd) | (is_last ? kIsLast : 0);
  }

  // Returns true if the CTA combines batches: its own, or all if there are no combiners and it is
  // the last. All threads of the team take part.
  LAZYROPE_DEVICE bool decide_combining(bool is_there, bool is_combiner, int32 num_combiners,
                                        uint32 before, bool may_wait) const {
    if (!is_combiner && num_combiners > 0) return false;
    bool combines = is_combiner && broadcast(0, Team::rank() == 0, is_there ? 1 : 0) != 0;
    if (!combines) {
      const uint32 own_state = counts() ? state(before) : 0;
      const uint32 state = broadcast(4, counts() && lane_index() == 0, own_state);
      combines = (state & kIsLast) != 0 || (is_combiner && !abandon(state & kIsOdd));
    }
    if (!may_wait) Team::sync();  // the team's next split may use the flags at once
    return combines;
  }

  // Gives up the CTA's batches. Returns false if all splits have come meanwhile: the batches are
  // then still its own. All threads of the team take part.
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

  // Finds abandoned batches. Returns false if none are left, or if another CTA is the last. The
  // counting warp calls it.
  LAZYROPE_DEVICE bool find_abandoned(Abandoned& abandoned, uint32 before,
                                      int32 num_combiners) const {
    const uint32 state = this->state(before);
    if ((state & kIsLast) == 0) return false;
    while (!abandoned.has_more() && abandoned.end < num_combiners)
      collect_abandoned(abandoned, state & kIsOdd, num_combiners);
    return abandoned.has_more();
  }

  // Marks 32 combiners as complete, one a lane, and collects those that had abandoned their
  // batches.
  LAZYROPE_DEVICE void collect_abandoned(Abandoned& abandoned, uint32 odd,
                                         int32 num_combiners) const {
    abandoned.first = abandoned.end;
    abandoned.end += kWarpThreads;
    const int32 combiner = abandoned.first + lane_index();
    // This CTA has not abandoned its own batches. No other CTA changes its mark, so a plain store
    // does, and nothing waits for it.
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
