// How the CTAs that hold the parts of one tile divide the merging of its rows among them, without
// relying on one another.
//
// Those whose part ends their work, as far as the planner can tell for all of them, own some of the
// rows and look for the parts themselves: what they see last is the word that they wait for, and no
// counter comes between. A CTA that has looked in vain for long abandons what it owns, for the
// others may not even have begun. The parts are counted beside all this, and whoever brings the
// last one merges what was abandoned: it knows that everything is on its way.
#pragma once

#include "abi/step.h"
#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "ops/lanes.cuh"
#include "ops/team.cuh"

namespace lazyrope {

// Of the work's counters number `counter` counts a tile's parts as they are written, from 0 to
// count in one launch and from count back to 0 in the next: launches are even or odd by it. From
// num_ctas + partial on there is one for each part, an owner's mark. The planner sets all to 0.
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

  // All threads of the team that has made the part, each of which has written what it has of its
  // part. Merge is TileCombiner. `may_wait`: the CTA has nothing else to do.
  //
  // One loop for all that a warp may merge, for looking is much code: its own units, every step-th
  // from the first on; then, in the last CTA, what others have abandoned.
  template <class Combiner>
  LAZYROPE_DEVICE void combine(const Combiner& tile, bool may_wait) const {
    const int32 num_combiners = smaller(num_combiners_, tile.num_batches());
    const bool is_combiner = split_.index < num_combiners;
    const uint32 before = counts() ? count() : 0;
    Abandoned abandoned;
    int32 step = larger(num_combiners, 1) * num_warps();
    int32 batch = num_combiners == 0 ? warp_ : split_.index + num_combiners * warp_;
    // The CTA's first unit decides for all: once its parts are there, all CTAs are writing theirs,
    // and the rest is sure to come.
    bool is_decided = false;
    int32 max_polls = !is_combiner ? 0 : may_wait ? kMaxPolls : 1;
    while (true) {
      typename Combiner::Combined combined{};  // else its registers would be held by who calls
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
  static constexpr uint32 kIsOdd = 1;  // the launch: part of every mark
  static constexpr uint32 kAbandoned = 2;
  static constexpr uint32 kComplete = 4;
  static constexpr uint32 kIsLast = 8;
  static constexpr int32 kMaxPolls = 128;  // looks, each of some half a microsecond
  static constexpr int32 kUnlimitedPolls = 0x7fffffff;

  LAZYROPE_DEVICE static int32 num_warps() { return Team::size() / kWarpThreads; }

  LAZYROPE_DEVICE uint32* mark_of(int32 combiner) const {
    return work_.counters + work_.num_ctas + split_.partial + combiner;
  }

  // Owners whose units are left to the last CTA's counting warp.
  struct Abandoned {
    uint32 combiners = 0;  // of 32, a bit each
    int32 first = 0;       // of these
    int32 end = 0;         // of all that have been asked

    LAZYROPE_DEVICE bool has_more() const { return combiners != 0; }
    LAZYROPE_DEVICE int32 take() {
#pragma unroll 1
      for (; (combiners & 1) == 0; ++first) combiners >>= 1;
      combiners >>= 1;
      return first++;
    }
  };

  // One warp counts the CTA's part and goes on: what its first lane gets is looked at when nothing
  // else is left to do. No order comes with it: that all parts are on their way is enough.
  LAZYROPE_DEVICE bool counts() const { return warp_ == num_warps() - 1; }
  LAZYROPE_DEVICE uint32 count() const {
    uint32 before = 0;
    if (lane_index() == 0)
      before = atom_relaxed_gpu_inc(work_.counters + split_.counter,
                                    2 * static_cast<uint32>(split_.count) - 1);
    return before;
  }
  // By that warp: of the launch and the CTA.
  LAZYROPE_DEVICE uint32 state(uint32 before) const {
    const auto count = static_cast<uint32>(split_.count);
    before = shfl_sync_idx(before, 0);
    const bool is_last = before + 1 == count || before + 1 == 2 * count;
    return (before < count ? 0 : kIsOdd) | (is_last ? kIsLast : 0);
  }

  // All threads of the team: whether the CTA merges units, its own or, where nobody owns any, all.
  LAZYROPE_DEVICE bool decide_combining(bool is_there, bool is_combiner, int32 num_combiners,
                                        uint32 before, bool may_wait) const {
    if (!is_combiner && num_combiners > 0) return false;
    bool combines = is_combiner && broadcast(0, Team::rank() == 0, is_there ? 1 : 0) != 0;
    if (!combines) {
      const uint32 own_state = counts() ? state(before) : 0;
      const uint32 state = broadcast(4, counts() && lane_index() == 0, own_state);
      combines = (state & kIsLast) != 0 || (is_combiner && !abandon(state & kIsOdd));
    }
    if (!may_wait) Team::sync();  // the team's next part may be told of at once
    return combines;
  }

  // All threads of the team: whether what the CTA owns is now another's. It is not if all parts
  // have come.
  LAZYROPE_DEVICE bool abandon(uint32 odd) const {
    const bool is_first = Team::rank() == 0;
    uint32 before = 0;
    if (is_first) before = atom_relaxed_gpu_exch(mark_of(split_.index), kAbandoned | odd);
    return broadcast(8, is_first, before) != (kComplete | odd);
  }

  // All threads of the team: what one of them has to say. A place is told of once a part.
  LAZYROPE_DEVICE uint32 broadcast(int32 offset, bool is_sender, uint32 value) const {
    if (is_sender) st_shared(flags_ + offset, value);
    Team::sync();
    return ld_shared<uint32>(flags_ + offset);
  }

  // The counting warp: false where nothing is left, or another CTA is the last.
  LAZYROPE_DEVICE bool find_abandoned(Abandoned& abandoned, uint32 before,
                                      int32 num_combiners) const {
    const uint32 state = this->state(before);
    if ((state & kIsLast) == 0) return false;
    while (!abandoned.has_more() && abandoned.end < num_combiners)
      collect_abandoned(abandoned, state & kIsOdd, num_combiners);
    return abandoned.has_more();
  }

  // Each lane looks after an owner.
  LAZYROPE_DEVICE void collect_abandoned(Abandoned& abandoned, uint32 odd,
                                         int32 num_combiners) const {
    abandoned.first = abandoned.end;
    abandoned.end += kWarpThreads;
    const int32 combiner = abandoned.first + lane_index();
    // The CTA has not abandoned its own: nobody else marks that, and nothing waits for it.
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
