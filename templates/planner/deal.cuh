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
class Deal {
 public:
  LAZYROPE_DEVICE Deal(const PlanPhase& phase, const Units& units)
      : phase_(phase), units_(units), num_ctas_(phase.work.num_ctas) {}

  // By all threads, before anything else is asked: whether no CTA gets more than about its share.
  LAZYROPE_DEVICE bool is_even(const CtaScan<Spec::kThreads>& scan) {
    num_units_ = units_.count();
    num_whole_ = num_units_ - divide(num_units_, num_ctas_).rest;
    set_parts(num_left() > 0 ? divide(num_ctas_, num_left()).whole : 1);
    is_fair_ = find_order(scan);
    return is_fair_ && (goes_by_tile_ || is_even_);
  }
  // Whether none gets much more.
  LAZYROPE_DEVICE bool is_fair() const { return is_fair_; }

  // Item i is that of CTA i % num_ctas in round i / num_ctas.
  LAZYROPE_DEVICE int32 num_items() const { return larger(num_rounds_, 1) * num_ctas_; }

  // All of an item, of which there may be none, but where it starts; that of a CTA without work is
  // empty. Parts of a unit have results and a counter by its number, of which there are enough:
  // parts of all units are no more than CTAs.
  LAZYROPE_DEVICE void describe(Item& item, int32 index) const {
    const auto [round, cta] = divide(index, num_ctas_);
    const Part dealt = at(cta, round);
    if (dealt.unit >= num_units_) return;
    const Unit unit = units_.uncut(place_of(dealt.unit));
    // Blocks are few enough that no part is empty where another has two.
    const int32 parts =
        dealt.unit < num_whole_ ? 1 : larger(smaller(num_parts_, unit.end_block), 1);
    if (dealt.index >= parts) return;
    // end_block * part / parts, of numbers that may be too big to multiply.
    const auto [whole, rest] = divide(unit.end_block, parts);
    const auto begin_of = [&](int32 part) {
      return whole * part + divide(rest * part, parts).whole;
    };
    units_.describe(item, unit.place, begin_of(dealt.index), begin_of(dealt.index + 1));
    if (at(cta, round + 1).unit < num_units_) item.keys.next = index + num_ctas_;
    const int32 left = larger(dealt.unit - num_whole_, 0);
    item.split = {dealt.index, parts, left * num_parts_, left};
    item.num_owners = parts;  // nothing comes behind a part
  }

 private:
  static constexpr int32 kMostParts = 16;              // behind whole units
  static constexpr int32 kMergeCost = 8 * kBlockCost;  // measured on an H100

  struct Part {
    int32 unit;  // num_units or more: none
    int32 index;
  };
  LAZYROPE_DEVICE Part at(int32 cta, int32 round) const {
    const int32 index = round * num_ctas_ + (round % 2 == 0 ? cta : num_ctas_ - 1 - cta);
    if (index < num_whole_) return {index, 0};
    const auto [left, part] = divide(index - num_whole_, num_parts_);
    return {num_whole_ + left, part};
  }

  // By all threads: whether no CTA gets much more than its share, and parts are not too short; in
  // the order in which that is so, if in any.
  LAZYROPE_DEVICE bool find_order(const CtaScan<Spec::kThreads>& scan) {
    constexpr int32 kMostRounds = 64;
    if (units_.has_parts() || num_rounds_ > kMostRounds) return false;
    const int32 orders = units_.num_groups > 1 ? 2 : 1;
#pragma unroll 1
    for (int32 order = 0; order < orders; ++order) {
      goes_by_tile_ = order > 0;
      if (goes_by_tile_) bar_sync();  // the scan's memory is free again
      // Neighbours share no keys where they go by tile.
      if (loses_less(goes_by_tile_ ? 5 : 3, scan)) return true;
    }
    return false;
  }

  // Units that are dealt in parts.
  LAZYROPE_DEVICE int32 num_left() const { return num_units_ - num_whole_; }
  LAZYROPE_DEVICE void set_parts(int32 parts) {
    num_parts_ = larger(parts, 1);
    num_rounds_ = divide_up(num_whole_ + num_left() * num_parts_, num_ctas_);
  }

  // By all threads: the parts of units that are left over behind whole ones.
  LAZYROPE_DEVICE void divide_rest(const CtaScan<Spec::kThreads>& scan) {
    if (num_whole_ == 0 || num_left() == 0) return;
    int32 blocks = 0;
#pragma unroll 1
    for (int32 i = num_whole_ + thread_index(); i < num_units_; i += Spec::kThreads)
      blocks = larger(blocks, units_.uncut(place_of(i)).end_block);
    blocks = scan.max(blocks);
    bar_sync();
    const int32 most = smaller(divide(blocks, phase_.min_split_blocks).whole, kMostParts);
    const int32 parts = larger(smaller(divide(num_ctas_, num_left()).whole, most), 1);
    const bool is_worth_it = (blocks - divide_up(blocks, parts)) * kBlockCost > kMergeCost;
    set_parts(is_worth_it ? parts : 1);
  }

  // Than one part in 2^bits.
  LAZYROPE_DEVICE bool loses_less(int32 bits, const CtaScan<Spec::kThreads>& scan) {
    divide_rest(scan);
    if (num_whole_ == 0 && num_parts_ > 1 &&
        units_.whole_cost() <
            static_cast<int64>(least_share(phase_.min_split_blocks)) * num_parts_ * num_units_)
      return false;
    int32 most = 0;
#pragma unroll 1
    for (int32 cta = thread_index(); cta < num_ctas_; cta += Spec::kThreads)
      most = larger(most, cost_of(cta));
    const int64 of_all = static_cast<int64>(scan.max(most)) * num_ctas_;
    const int64 total = units_.cost();
    is_even_ = of_all <= total + (total >> 6);
    return of_all <= total + (total >> bits);
  }

  // What is dealt as number `unit`.
  LAZYROPE_DEVICE UnitPlace place_of(int32 unit) const {
    if (!goes_by_tile_) {
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
      const Part dealt = at(cta, round);
      if (dealt.unit >= num_units_) break;
      const int32 unit = units_.cost_of(place_of(dealt.unit).tile);
      cost += dealt.unit < num_whole_ ? unit : divide_up(unit, num_parts_);
    }
    return cost;
  }

  const PlanPhase& phase_;
  const Units& units_;
  int32 num_ctas_;
  int32 num_units_ = 0;
  int32 num_whole_ = 0;  // of these, dealt whole
  int32 num_parts_ = 1;  // of each of the others
  int32 num_rounds_ = 0;
  bool goes_by_tile_ = false;
  bool is_even_ = false;
  bool is_fair_ = false;
};

}  // namespace lazyrope
