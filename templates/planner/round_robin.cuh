// Round-robin schedule: whole units are assigned to the CTAs of the attend kernel in rounds. Even
// rounds go from the first CTA to the last, and odd rounds from the last to the first, so that
// early CTAs do not get all of the longer units. The last round may have fewer units than there are
// CTAs. Its units are then cut into equal KV splits if that saves more than combining them costs.
//
// Input: Units and the limits of PlanPhase. Output: describe() gives the work tile of any index;
// work tile i is that of CTA i % num_ctas in round i / num_ctas.
//
// CTAs that run at the same time have units that are close in order: all tiles of one group of
// heads, then those of the next (group-major). Causal tiles of long requests differ much in cost,
// so this order may be unbalanced. The other order is tile-major, from the last tile to the first:
// one tile for all groups, then the tile before it.
#pragma once

#include "planner/units.cuh"

namespace lazyrope {

template <class Spec>
class RoundRobinSchedule {
 public:
  LAZYROPE_DEVICE RoundRobinSchedule(const PlanPhase& phase, const Units& units)
      : phase_(phase), units_(units), num_ctas_(phase.work.num_ctas) {}

  // Chooses the order and the splits; all other functions need it first. Returns true if the
  // costliest CTA exceeds the average by at most 1/64 (kBalancedBits), or 1/32 in tile-major order
  // (kTileMajorBits). All threads of the CTA take part.
  LAZYROPE_DEVICE bool is_balanced(const CtaScan<Spec::kThreads>& scan) {
    num_units_ = units_.count();
    num_whole_ = num_units_ - divide(num_units_, num_ctas_).rest;
    set_splits(num_remaining() > 0 ? divide(num_ctas_, num_remaining()).whole : 1);
    is_nearly_balanced_ = choose_order(scan);
    return is_nearly_balanced_ && (is_tile_major_ || is_balanced_);
  }
  // Returns true if the costliest CTA exceeds the average by at most 1/8 (kNearlyBalancedBits), or
  // 1/32 in tile-major order.
  LAZYROPE_DEVICE bool is_nearly_balanced() const { return is_nearly_balanced_; }

  // Every CTA has a work tile in every round, which may be empty.
  LAZYROPE_DEVICE int32 num_work_tiles() const { return larger(num_rounds_, 1) * num_ctas_; }

  // Describes a work tile except for its start. A CTA without work in this round gets an empty work
  // tile. The splits of a unit of the last round have consecutive partial results and one counter.
  // The unit's number in that round gives both. The splits of all units are at most as many as the
  // CTAs, so there are enough partial results and counters.
  LAZYROPE_DEVICE void describe(WorkTile& work_tile, int32 index) const {
    const auto [round, cta] = divide(index, num_ctas_);
    const Assignment assigned = assignment(cta, round);
    if (assigned.unit >= num_units_) return;
    const Unit unit = units_.whole_unit(coord_of(assigned.unit));
    // Each split has at least one block.
    const int32 splits =
        assigned.unit < num_whole_ ? 1 : larger(smaller(num_splits_, unit.end_block), 1);
    if (assigned.index >= splits) return;
    // The first block is end_block * split / splits; the product could exceed an int32.
    const auto [whole, rest] = divide(unit.end_block, splits);
    const auto begin_of = [&](int32 split) {
      return whole * split + divide(rest * split, splits).whole;
    };
    units_.describe(work_tile, unit.coord, begin_of(assigned.index), begin_of(assigned.index + 1));
    if (assignment(cta, round + 1).unit < num_units_) work_tile.keys.next = index + num_ctas_;
    const int32 remaining = larger(assigned.unit - num_whole_, 0);
    work_tile.split = {assigned.index, splits, remaining * num_splits_, remaining};
    work_tile.num_combiners = splits;  // a split is the last work tile of its CTA
  }

 private:
  // The unit, and the index of its split, that a CTA has in one round.
  struct Assignment {
    int32 unit;  // num_units or more: no unit
    int32 index;
  };
  LAZYROPE_DEVICE Assignment assignment(int32 cta, int32 round) const {
    const int32 index = round * num_ctas_ + (round % 2 == 0 ? cta : num_ctas_ - 1 - cta);
    if (index < num_whole_) return {index, 0};
    const auto [remaining, split] = divide(index - num_whole_, num_splits_);
    return {num_whole_ + remaining, split};
  }

  // Chooses the first order in which no CTA gets much more than its share and splits are not too
  // short. Returns false if there is no such order. All threads of the CTA take part.
  LAZYROPE_DEVICE bool choose_order(const CtaScan<Spec::kThreads>& scan) {
    if (units_.has_fixed_splits() || num_rounds_ > kMaxRoundRobinRounds) return false;
    const int32 orders = units_.num_groups > 1 ? 2 : 1;
#pragma unroll 1
    for (int32 order = 0; order < orders; ++order) {
      is_tile_major_ = order > 0;
      if (is_tile_major_) bar_sync();  // the scan's memory is free again
      if (has_imbalance_below(is_tile_major_ ? kTileMajorBits : kNearlyBalancedBits, scan))
        return true;
    }
    return false;
  }

  // The units of the incomplete last round.
  LAZYROPE_DEVICE int32 num_remaining() const { return num_units_ - num_whole_; }
  LAZYROPE_DEVICE void set_splits(int32 splits) {
    num_splits_ = larger(splits, 1);
    num_rounds_ = divide_up(num_whole_ + num_remaining() * num_splits_, num_ctas_);
  }

  // Chooses the number of splits of the last round's units, where there are whole units, too. All
  // threads of the CTA take part.
  LAZYROPE_DEVICE void split_remainder(const CtaScan<Spec::kThreads>& scan) {
    if (num_whole_ == 0 || num_remaining() == 0) return;
    int32 blocks = 0;
#pragma unroll 1
    for (int32 i = num_whole_ + thread_index(); i < num_units_; i += Spec::kThreads)
      blocks = larger(blocks, units_.whole_unit(coord_of(i)).end_block);
    blocks = scan.max(blocks);
    bar_sync();
    const int32 max = smaller(divide(blocks, phase_.min_split_blocks).whole, kMaxRemainderSplits);
    const int32 splits = larger(smaller(divide(num_ctas_, num_remaining()).whole, max), 1);
    const bool is_worth_it = (blocks - divide_up(blocks, splits)) * kBlockCost > kCombineCost;
    set_splits(is_worth_it ? splits : 1);
  }

  // Returns true if the greatest cost of a CTA exceeds the average by at most one part in 2^bits.
  // All threads of the CTA take part.
  LAZYROPE_DEVICE bool has_imbalance_below(int32 bits, const CtaScan<Spec::kThreads>& scan) {
    split_remainder(scan);
    if (num_whole_ == 0 && num_splits_ > 1 &&
        units_.unscaled_cost() <
            static_cast<int64>(min_share_cost(phase_.min_split_blocks)) * num_splits_ * num_units_)
      return false;
    int32 max = 0;
#pragma unroll 1
    for (int32 cta = thread_index(); cta < num_ctas_; cta += Spec::kThreads)
      max = larger(max, cost_of(cta));
    const int64 of_all = static_cast<int64>(scan.max(max)) * num_ctas_;
    const int64 total = units_.cost();
    is_balanced_ = of_all <= total + (total >> kBalancedBits);
    return of_all <= total + (total >> bits);
  }

  // Returns the unit that is number `unit` in the chosen order.
  LAZYROPE_DEVICE UnitCoord coord_of(int32 unit) const {
    if (!is_tile_major_) {
      const auto [group, tile] = divide(unit, units_.units_per_group);
      return {group, tile, 0};
    }
    const auto [tile, group] = divide(unit, units_.num_groups);
    return {group, units_.units_per_group - 1 - tile, 0};
  }

  // Returns the cost of all units and splits that a CTA has.
  LAZYROPE_DEVICE int32 cost_of(int32 cta) const {
    int32 cost = 0;
#pragma unroll 1
    for (int32 round = 0; round < num_rounds_; ++round) {
      const Assignment assigned = assignment(cta, round);
      if (assigned.unit >= num_units_) break;
      const int32 unit = units_.cost_of(coord_of(assigned.unit).tile);
      cost += assigned.unit < num_whole_ ? unit : divide_up(unit, num_splits_);
    }
    return cost;
  }

  const PlanPhase& phase_;
  const Units& units_;
  int32 num_ctas_;
  int32 num_units_ = 0;
  int32 num_whole_ = 0;   // the first units, assigned whole
  int32 num_splits_ = 1;  // KV splits of each of the others
  int32 num_rounds_ = 0;
  bool is_tile_major_ = false;
  bool is_balanced_ = false;
  bool is_nearly_balanced_ = false;
};

}  // namespace lazyrope
