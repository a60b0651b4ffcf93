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
class SplitTile {
 public:
  LAZYROPE_DEVICE SplitTile(const WorkView& work, ItemSplit split, int32 num_owners,
                            SharedPtr flags)
      : work_(work),
        split_(split),
        num_owners_(num_owners),
        flags_(flags),
        warp_(warp_uniform(Team::warp())) {}

  // All threads of the team that has made the part, each of which has written what it has of its
  // part. Merge is TileMerge. `may_wait`: the CTA has nothing else to do.
  //
  // One loop for all that a warp may merge, for looking is much code: its own units, every step-th
  // from the first on; then, in the last CTA, what others have abandoned.
  template <class Merge>
  LAZYROPE_DEVICE void merge(const Merge& tile, bool may_wait) const {
    const int32 num_owners = smaller(num_owners_, tile.num_units());
    const bool is_owner = split_.index < num_owners;
    const uint32 before = counts() ? count() : 0;
    Abandoned abandoned;
    int32 step = larger(num_owners, 1) * num_warps();
    int32 unit = num_owners == 0 ? warp_ : split_.index + num_owners * warp_;
    // The CTA's first unit decides for all: once its parts are there, all CTAs are writing theirs,
    // and the rest is sure to come.
    bool is_decided = false;
    int32 looks = !is_owner ? 0 : may_wait ? kPatience : 1;
    while (true) {
      typename Merge::Merged merged{};  // else its registers would be held by who calls
      bool is_there = unit < tile.num_units() && tile.look_for(unit, looks, merged);
      if (!is_decided && !decide(is_there, is_owner, num_owners, before, may_wait)) {
        is_there = false;
        unit = tile.num_units();
      }
      is_decided = true;
      looks = kForever;
      if (is_there) {
        tile.keep(merged);
        unit += step;
      }
      if (unit < tile.num_units()) continue;
      if (!counts() || !find_abandoned(abandoned, before, num_owners)) return;
      unit = abandoned.take();
      step = num_owners;
    }
  }

 private:
  static constexpr uint32 kIsOdd = 1;  // the launch: part of every mark
  static constexpr uint32 kAbandoned = 2;
  static constexpr uint32 kComplete = 4;
  static constexpr uint32 kIsLast = 8;
  static constexpr int32 kPatience = 128;  // looks, each of some half a microsecond
  static constexpr int32 kForever = 0x7fffffff;

  LAZYROPE_DEVICE static int32 num_warps() { return Team::size() / kWarpThreads; }

  LAZYROPE_DEVICE uint32* mark_of(int32 owner) const {
    return work_.counters + work_.num_ctas + split_.partial + owner;
  }

  // Owners whose units are left to the last CTA's counting warp.
  struct Abandoned {
    uint32 owners = 0;  // of 32, a bit each
    int32 first = 0;    // of these
    int32 end = 0;      // of all that have been asked

    LAZYROPE_DEVICE bool has_more() const { return owners != 0; }
    LAZYROPE_DEVICE int32 take() {
#pragma unroll 1
      for (; (owners & 1) == 0; ++first) owners >>= 1;
      owners >>= 1;
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
  LAZYROPE_DEVICE bool decide(bool is_there, bool is_owner, int32 num_owners, uint32 before,
                              bool may_wait) const {
    if (!is_owner && num_owners > 0) return false;
    bool merges = is_owner && tell(0, Team::rank() == 0, is_there ? 1 : 0) != 0;
    if (!merges) {
      const uint32 told = counts() ? state(before) : 0;
      const uint32 state = tell(4, counts() && lane_index() == 0, told);
      merges = (state & kIsLast) != 0 || (is_owner && !abandon(state & kIsOdd));
    }
    if (!may_wait) Team::sync();  // the team's next part may be told of at once
    return merges;
  }

  // All threads of the team: whether what the CTA owns is now another's. It is not if all parts
  // have come.
  LAZYROPE_DEVICE bool abandon(uint32 odd) const {
    const bool is_first = Team::rank() == 0;
    uint32 before = 0;
    if (is_first) before = atom_relaxed_gpu_exch(mark_of(split_.index), kAbandoned | odd);
    return tell(8, is_first, before) != (kComplete | odd);
  }

  // All threads of the team: what one of them has to say. A place is told of once a part.
  LAZYROPE_DEVICE uint32 tell(int32 place, bool is_teller, uint32 what) const {
    if (is_teller) st_shared(flags_ + place, what);
    Team::sync();
    return ld_shared<uint32>(flags_ + place);
  }

  // The counting warp: false where nothing is left, or another CTA is the last.
  LAZYROPE_DEVICE bool find_abandoned(Abandoned& abandoned, uint32 before, int32 num_owners) const {
    const uint32 state = this->state(before);
    if ((state & kIsLast) == 0) return false;
    while (!abandoned.has_more() && abandoned.end < num_owners)
      ask_owners(abandoned, state & kIsOdd, num_owners);
    return abandoned.has_more();
  }

  // Each lane looks after an owner.
  LAZYROPE_DEVICE void ask_owners(Abandoned& abandoned, uint32 odd, int32 num_owners) const {
    abandoned.first = abandoned.end;
    abandoned.end += kWarpThreads;
    const int32 owner = abandoned.first + lane_index();
    // The CTA has not abandoned its own: nobody else marks that, and nothing waits for it.
    const bool exists = owner < num_owners;
    if (exists && owner == split_.index) st_global(mark_of(owner), kComplete | odd);
    abandoned.owners = vote_sync_ballot(exists && owner != split_.index &&
                                        atom_relaxed_gpu_exch(mark_of(owner), kComplete | odd) ==
                                            (kAbandoned | odd));
  }

  const WorkView& work_;
  ItemSplit split_;
  int32 num_owners_;
  SharedPtr flags_;
  int32 warp_;
};

}  // namespace lazyrope
