// A step's units dealt out to the CTAs of the attend kernel: whole, in turns, to and fro, so that
// the first units weigh no more than the last; those that are left over, fewer than CTAs, in equal
// parts, as many as there are CTAs for, if that is worth the merging. What CTAs do at the same time
// is as near in the line as can be: all tiles of a head, then those of the next; or where that is
// not fair, for tiles weigh as different as causal ones of long requests, a tile of all heads, then
// the one before it.
#pragma once

#include "planner/units.cuh"

namespace lazyrope {

template <class Spec>
class RoundRobinSchedule {
 public:
  LAZYROPE_DEVICE RoundRobinSchedule(const PlanPhase& phase, const Units& units)
      : phase_(phase), units_(units), num_ctas_(phase.work.num_ctas) {}

  // By all threads, before anything else is asked: whether no CTA gets more than about its share.
  LAZYROPE_DEVICE bool is_balanced(const CtaScan<Spec::kThreads>& scan) {
    num_units_ = units_.count();
    num_whole_ = num_units_ - divide(num_units_, num_ctas_).rest;
    set_splits(num_remaining() > 0 ? divide(num_ctas_, num_remaining()).whole : 1);
    is_nearly_balanced_ = choose_order(scan);
    return is_nearly_balanced_ && (is_tile_major_ || is_balanced_);
  }
  // Whether none gets much more.
  LAZYROPE_DEVICE bool is_nearly_balanced() const { return is_nearly_balanced_; }

  // WorkTile i is that of CTA i % num_ctas in round i / num_ctas.
  LAZYROPE_DEVICE int32 num_work_tiles() const { return larger(num_rounds_, 1) * num_ctas_; }

  // All of a work tile, of which there may be none, but where it starts; that of a CTA without work
  // is empty. Parts of a unit have results and a counter by its number, of which there are enough:
  // parts of all units are no more than CTAs.
  LAZYROPE_DEVICE void describe(WorkTile& work_tile, int32 index) const {
    const auto [round, cta] = divide(index, num_ctas_);
    const Assignment assigned = assignment(cta, round);
    if (assigned.unit >= num_units_) return;
    const Unit unit = units_.whole_unit(coord_of(assigned.unit));
    // Blocks are few enough that no part is empty where another has two.
    const int32 splits =
        assigned.unit < num_whole_ ? 1 : larger(smaller(num_splits_, unit.end_block), 1);
    if (assigned.index >= splits) return;
    // end_block * part / parts, of numbers that may be too big to multiply.
    const auto [whole, rest] = divide(unit.end_block, splits);
    const auto begin_of = [&](int32 split) {
      return whole * split + divide(rest * split, splits).whole;
    };
    units_.describe(work_tile, unit.coord, begin_of(assigned.index), begin_of(assigned.index + 1));
    if (assignment(cta, round + 1).unit < num_units_) work_tile.keys.next = index + num_ctas_;
    const int32 remaining = larger(assigned.unit - num_whole_, 0);
    work_tile.split = {assigned.index, splits, remaining * num_splits_, remaining};
    work_tile.num_combiners = splits;  // nothing comes behind a part
  }

 private:
  static constexpr int32 kMaxSplits = 16;                // behind whole units
  static constexpr int32 kCombineCost = 8 * kBlockCost;  // measured on an H100

  struct Assignment {
    int32 unit;  // num_units or more: none
    int32 index;
  };
  LAZYROPE_DEVICE Assignment assignment(int32 cta, int32 round) const {
    const int32 index = round * num_ctas_ + (round % 2 == 0 ? cta : num_ctas_ - 1 - cta);
    if (index < num_whole_) return {index, 0};
    const auto [remaining, split] = divide(index - num_whole_, num_splits_);
    return {num_whole_ + remaining, split};
  }

  // By all threads: whether no CTA gets much more than its share, and parts are not too short; in
  // the order in which that is so, if in any.
  LAZYROPE_DEVICE bool choose_order(const CtaScan<Spec::kThreads>& scan) {
    constexpr int32 kMaxRounds = 64;
    if (units_.has_fixed_splits() || num_rounds_ > kMaxRounds) return false;
    const int32 orders = units_.num_groups > 1 ? 2 : 1;
#pragma unroll 1
    for (int32 order = 0; order < orders; ++order) {
      is_tile_major_ = order > 0;
      if (is_tile_major_) bar_sync();  // the scan's memory is free again
      // Neighbours share no keys where they go by tile.
      if (has_imbalance_below(is_tile_major_ ? 5 : 3, scan)) return true;
    }
    return false;
  }

  // Units that are dealt in parts.
  LAZYROPE_DEVICE int32 num_remaining() const { return num_units_ - num_whole_; }
  LAZYROPE_DEVICE void set_splits(int32 splits) {
    num_splits_ = larger(splits, 1);
    num_rounds_ = divide_up(num_whole_ + num_remaining() * num_splits_, num_ctas_);
  }

  // By all threads: the parts of units that are left over behind whole ones.
  LAZYROPE_DEVICE void split_remainder(const CtaScan<Spec::kThreads>& scan) {
    if (num_whole_ == 0 || num_remaining() == 0) return;
    int32 blocks = 0;
#pragma unroll 1
    for (int32 i = num_whole_ + thread_index(); i < num_units_; i += Spec::kThreads)
      blocks = larger(blocks, units_.whole_unit(coord_of(i)).end_block);
    blocks = scan.max(blocks);
    bar_sync();
    const int32 max = smaller(divide(blocks, phase_.min_split_blocks).whole, kMaxSplits);
    const int32 splits = larger(smaller(divide(num_ctas_, num_remaining()).whole, max), 1);
    const bool is_worth_it = (blocks - divide_up(blocks, splits)) * kBlockCost > kCombineCost;
    set_splits(is_worth_it ? splits : 1);
  }

  // Than one part in 2^bits.
  LAZYROPE_DEVICE bool has_imbalance_below(int32 bits, const CtaScan<Spec::kThreads>& scan) {
    split_remainder(scan);
    if (num_whole_ == 0 && num_splits_ > 1 &&
        units_.whole_cost() <
            static_cast<int64>(min_share_cost(phase_.min_split_blocks)) * num_splits_ * num_units_)
      return false;
    int32 max = 0;
#pragma unroll 1
    for (int32 cta = thread_index(); cta < num_ctas_; cta += Spec::kThreads)
      max = larger(max, cost_of(cta));
    const int64 of_all = static_cast<int64>(scan.max(max)) * num_ctas_;
    const int64 total = units_.cost();
    is_balanced_ = of_all <= total + (total >> 6);
    return of_all <= total + (total >> bits);
  }

  // What is dealt as number `unit`.
  LAZYROPE_DEVICE UnitCoord coord_of(int32 unit) const {
    if (!is_tile_major_) {
      const auto [group, tile] = divide(unit, units_.per_group);
      return {group, tile, 0};
    }
    const auto [tile, group] = divide(unit, units_.num_groups);
    return {group, units_.per_group - 1 - tile, 0};
  }

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
  int32 num_whole_ = 0;   // of these, dealt whole
  int32 num_splits_ = 1;  // of each of the others
  int32 num_rounds_ = 0;
  bool is_tile_major_ = false;
  bool is_balanced_ = false;
  bool is_nearly_balanced_ = false;
};

}  // namespace lazyrope
