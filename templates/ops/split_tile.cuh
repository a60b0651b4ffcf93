// How the CTAs that hold the parts of one tile divide the merging of its rows among them, without
// relying on one another.
//
// Those whose part ends their work, all but the last part's, own some of the rows and look for the
// parts themselves: what they see last is the word that they wait for, and no counter comes
// between. A CTA that has looked in vain for long abandons what it owns, for the others may not
// even have begun. The parts are counted beside all this, and whoever brings the last one merges
// what was abandoned: it knows that everything is on its way.
#pragma once

#include "abi/step.h"
#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "ops/team.cuh"

namespace lazyrope {

// Of the work's counters number `counter` counts a tile's parts as they are written, from 0 to
// count in one launch and from count back to 0 in the next: launches are even or odd by it. From
// num_ctas + partial on there is one for each part, an owner's mark. The planner sets all to 0.
inline constexpr int32 kFlagBytes = 12;

template <class Team>
class SplitTile {
 public:
  LAZYROPE_DEVICE SplitTile(const WorkView& work, ItemSplit split, SharedPtr flags)
      : work_(work), split_(split), flags_(flags) {}

  // All threads of the team that has made the part, each of which has written what it has of its
  // part. Merge is TileMerge. `may_wait`: the CTA has nothing else to do.
  //
  // One loop for all that a warp may merge, for looking is much code: its own units, every step-th
  // from the first on; then, in the last CTA, what others have abandoned.
  template <class Merge>
  LAZYROPE_DEVICE void merge(const Merge& tile, bool may_wait) const {
    // Where a CTA may hold several parts it must not wait for the others.
    const int32 num_owners =
        work_.has_fixed_parts != 0 ? 0 : smaller(split_.count - 1, tile.num_units());
    const bool is_owner = split_.index < num_owners;
    Abandoned abandoned;
    if (warp() == num_warps() - 1) abandoned = arrive(num_owners);
    int32 step = larger(num_owners, 1) * num_warps();
    int32 unit = num_owners == 0 ? warp() : split_.index + num_owners * warp();
    // The CTA's first unit decides for all: once its parts are there, all CTAs are writing theirs,
    // and the rest is sure to come.
    bool is_sure = false;
    int32 looks = !is_owner ? 0 : may_wait ? kPatience : 1;
    while (true) {
      typename Merge::Merged merged;
      bool is_there = false;
      while (unit < tile.num_units() && !is_there && (is_sure || looks-- > 0))
        is_there = tile.look_at(unit, merged);
      if (!is_sure && !decide(is_there, num_owners)) {
        is_there = false;
        unit = tile.num_units();
      }
      is_sure = true;
      if (is_there) {
        tile.keep(unit, merged);
        unit += step;
      }
      if (unit < tile.num_units()) continue;
      if (!find_abandoned(abandoned)) return;
      unit = abandoned.take();
      step = num_owners;
    }
  }

 private:
  static constexpr uint32 kIsOdd = 1;  // the launch: part of every mark
  static constexpr uint32 kAbandoned = 2;
  static constexpr uint32 kComplete = 4;
  static constexpr uint32 kIsLast = 8;
  static constexpr int32 kPatience = 128;  // looks, each of most of a microsecond

  LAZYROPE_DEVICE static int32 warp() { return Team::rank() / kWarpThreads; }
  LAZYROPE_DEVICE static int32 num_warps() { return Team::size() / kWarpThreads; }

  LAZYROPE_DEVICE uint32* mark_of(int32 owner) const {
    return work_.counters + work_.num_ctas + split_.partial + owner;
  }

  // Owners whose units are left to the last CTA's last warp.
  struct Abandoned {
    uint32 owners = 0;  // of 32, a bit each
    int32 first = 0;    // of these
    int32 end = 0;      // of all that have been asked
    uint32 odd = 0;
    int32 num_owners = 0;  // that are to be asked

    LAZYROPE_DEVICE bool has_more() const { return owners != 0; }
    LAZYROPE_DEVICE int32 take() {
#pragma unroll 1
      for (; (owners & 1) == 0; ++first) owners >>= 1;
      owners >>= 1;
      return first++;
    }
  };

  // One warp counts the CTA's part, while the others look for theirs. No order comes with it: that
  // all parts are on their way is enough.
  LAZYROPE_DEVICE Abandoned arrive(int32 num_owners) const {
    const auto count = static_cast<uint32>(split_.count);
    uint32 before = 0;
    if (lane_index() == 0)
      before = atom_relaxed_gpu_inc(work_.counters + split_.counter, 2 * count - 1);
    before = shfl_sync_idx(before, 0);
    const uint32 odd = before < count ? 0 : kIsOdd;
    const bool is_last = before + 1 == count || before + 1 == 2 * count;
    if (lane_index() == 0) st_shared(flags_, odd | (is_last ? kIsLast : 0));
    Abandoned abandoned;
    abandoned.odd = odd;
    abandoned.num_owners = is_last ? num_owners : 0;
    ask_owners(abandoned);
    return abandoned;
  }

  // All threads of the team: whether the CTA merges units of its own.
  LAZYROPE_DEVICE bool decide(bool is_there, int32 num_owners) const {
    if (Team::rank() == 0) st_shared(flags_ + 4, is_there ? 1u : 0u);
    Team::sync();
    const uint32 state = ld_shared<uint32>(flags_);
    const bool all_are_there = ld_shared<uint32>(flags_ + 4) != 0;
    Team::sync();  // the team's next part may be told of at once
    const bool is_last = (state & kIsLast) != 0;
    // Where there are no owners, all is the last's.
    if (split_.index >= num_owners) return is_last && num_owners == 0;
    return is_last || all_are_there || !abandon(state);
  }

  // All threads of the team: whether what the CTA owns is now another's. It is not if all parts
  // have come.
  LAZYROPE_DEVICE bool abandon(uint32 state) const {
    const uint32 odd = state & kIsOdd;
    if (Team::rank() == 0)
      st_shared(flags_ + 8, atom_relaxed_gpu_exch(mark_of(split_.index), kAbandoned | odd));
    Team::sync();
    return ld_shared<uint32>(flags_ + 8) != (kComplete | odd);
  }

  // False where nothing is left.
  LAZYROPE_DEVICE bool find_abandoned(Abandoned& abandoned) const {
    while (!abandoned.has_more() && abandoned.end < abandoned.num_owners) ask_owners(abandoned);
    return abandoned.has_more();
  }

  // A warp of the CTA that came last: each lane looks after an owner.
  LAZYROPE_DEVICE void ask_owners(Abandoned& abandoned) const {
    const uint32 odd = abandoned.odd;
    abandoned.first = abandoned.end;
    abandoned.end += kWarpThreads;
    const int32 owner = abandoned.first + lane_index();
    // The CTA has not abandoned its own: nobody else marks that, and nothing waits for it.
    const bool exists = owner < abandoned.num_owners;
    if (exists && owner == split_.index) st_global(mark_of(owner), kComplete | odd);
    abandoned.owners = vote_sync_ballot(exists && owner != split_.index &&
                                        atom_relaxed_gpu_exch(mark_of(owner), kComplete | odd) ==
                                            (kAbandoned | odd));
  }

  const WorkView& work_;
  ItemSplit split_;
  SharedPtr flags_;
};

}  // namespace lazyrope
