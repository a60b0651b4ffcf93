// A step's units laid end to end by cost and cut into equal shares, one for each CTA of the attend
// kernel: the tail of a unit, some whole units, the head of another.
//
// Shares begin at boundaries, and boundary c is that of CTA c. What is asked of them is how many
// lie before a point of the line, a product: nobody writes them down, and no CTA waits for it.
#pragma once

#include "family/plan_units.cuh"
#include "ops/lanes.cuh"

namespace lazyrope {

template <class Units>
class CutLine {
 public:
  LAZYROPE_DEVICE CutLine(const PlanPhase& phase, const Units& units)
      : phase_(phase), units_(units) {
    const auto cost = static_cast<float>(units.cost());
    const float most = cost * rcp_approx_ftz_f32(static_cast<float>(least_share(phase)));
    const auto num_ctas = static_cast<float>(phase.work.num_ctas);
    shares_ = larger(static_cast<int32>(most < num_ctas ? most : num_ctas), 1);
    if (units.count() == 0) shares_ = 0;
    per_cost_ = static_cast<float>(shares_) * rcp_approx_ftz_f32(cost);
    share_ = cost * rcp_approx_ftz_f32(static_cast<float>(shares_));
  }

  // The first item of each CTA, then, by its number, one for each unit with which a CTA goes on.
  LAZYROPE_DEVICE int32 num_items() const { return phase_.work.num_ctas + units_.count(); }

  // By all lanes of a warp, each group for an item, of which there may be none: all of it but where
  // it starts. That of a CTA without work is empty.
  LAZYROPE_DEVICE void describe(Item& item, int32 index) const {
    const int32 num_ctas = phase_.work.num_ctas;
    int32 cta = index < num_ctas ? index : -1;
    if (shares_ == 0) return;
    const Unit begun = unit_of(smaller(larger(cta, 0), shares_ - 1));
    if (cta >= shares_ || index >= num_items()) return;
    const Stretch unit = stretch(cta < 0 ? units_.get(index - num_ctas) : begun);
    if (unit.unit.group >= units_.num_groups) return;
    if (cta >= 0 && cta + 1 < unit.first_cut) return;  // where the next CTA begins, too
    const bool begins_inside = cta >= unit.first_cut;
    if (!begins_inside) cta = unit.first_cut - 1;
    const bool ends_inside = cta + 1 < unit.end_cut;
    units_.describe(item, unit.unit, begins_inside ? block_at(unit, cta) : unit.unit.first_block,
                    ends_inside ? block_at(unit, cta + 1) : unit.unit.end_block);
    item.split = split(unit, cta);
    if (!ends_inside) item.keys.next = next(unit);
  }

 private:
  // A unit on the line. Boundaries near its ends are moved there, those between lie inside of it.
  struct Stretch {
    Unit unit;
    int64 begin;  // of its tile
    int64 end;
    int32 first_cut;  // boundaries before the first inside: also those at its beginning
    int32 end_cut;    // boundaries before the end, without those moved there
  };

  // Does not decrease with the point.
  LAZYROPE_DEVICE int32 boundaries_before(int64 point) const {
    const float boundaries = static_cast<float>(point) * per_cost_;
    auto whole = static_cast<int32>(boundaries);
    if (static_cast<float>(whole) < boundaries) ++whole;
    return smaller(whole, shares_);
  }

  LAZYROPE_DEVICE Stretch stretch(const Unit& unit) const {
    const int64 begin = group_begin(unit.group) + units_.tiles.cost_begin.get(unit.tile);
    const int64 end = group_begin(unit.group) + units_.tiles.cost_begin.get(unit.tile + 1);
    if (units_.has_parts()) {
      const int64 part = part_cost(phase_, unit.part_blocks);
      const int32 boundaries = boundaries_before(begin + (unit.part + 1) * part);
      return {unit, begin, end, boundaries, boundaries};
    }
    return {unit, begin, end, boundaries_before(first_inside(begin, end)), end_cut(begin, end)};
  }
  LAZYROPE_DEVICE int64 group_begin(int32 group) const { return group * units_.group_cost; }

  // What an item costs beside its blocks is spent before the first of them.
  LAZYROPE_DEVICE int64 first_inside(int64 begin, int64 end) const {
    return smaller(begin + phase_.item_cost + least_share(phase_), end);
  }
  LAZYROPE_DEVICE int32 end_cut(int64 begin, int64 end) const {
    return boundaries_before(larger(end - least_share(phase_), first_inside(begin, end)));
  }

  // Inside of which a boundary lies, or to whose beginning it is moved: none lies inside of a part.
  LAZYROPE_DEVICE Unit unit_of(int32 boundary) const {
    const auto of_group = [&](int32 i) { return boundaries_before(group_begin(i)); };
    const int32 group =
        upper_bound_by_lanes<kGroupLanes>(units_.num_groups, boundary, of_group) - 1;
    const auto of_tile = [&](int32 tile) {
      const int64 begin = group_begin(group) + units_.tiles.cost_begin.get(tile);
      const int64 end = group_begin(group) + units_.tiles.cost_begin.get(tile + 1);
      return units_.has_parts() ? boundaries_before(end) : end_cut(begin, end);
    };
    const int32 tile = upper_bound_by_lanes<kGroupLanes>(units_.num_tiles, boundary, of_tile);
    if (tile == units_.num_tiles) return units_.at(group + 1, 0, 0);
    Unit unit = units_.at(group, tile, 0);
#pragma unroll 1
    while (unit.part + 1 < unit.num_parts && boundary >= stretch(unit).end_cut)
      unit = units_.at(group, tile, unit.part + 1);
    return unit;
  }

  LAZYROPE_DEVICE int32 next(const Stretch& unit) const {
    const Stretch next = stretch(units_.next(unit.unit));
    const bool has_next = next.unit.group < units_.num_groups && next.first_cut == unit.end_cut;
    return has_next ? phase_.work.num_ctas + units_.index_of(next.unit) : -1;
  }

  // The same for the CTA that ends there and for the one that begins: no product is added to
  // anything, which a compiler may round once or twice.
  LAZYROPE_DEVICE int32 block_at(const Stretch& stretch, int32 boundary) const {
    const int64 first = stretch.begin + phase_.item_cost;
    const auto into = static_cast<int64>(static_cast<float>(boundary) * share_) - first;
    const auto blocks = static_cast<float>(stretch.unit.end_block);
    const float of_cost = blocks * rcp_approx_ftz_f32(static_cast<float>(stretch.end - first));
    const auto block = static_cast<int32>(static_cast<float>(into) * of_cost);
    return smaller(larger(block, phase_.min_split_blocks),
                   stretch.unit.end_block - phase_.min_split_blocks);
  }

  // CTAs a to b hold a unit's parts: they use results 2 a + 1 to a + b + 1 and counter a. The next
  // unit that is cut has its first part in CTA b or later.
  LAZYROPE_DEVICE ItemSplit split(const Stretch& unit, int32 cta) const {
    if (units_.has_parts()) return fixed_split(unit.unit);
    if (unit.first_cut == unit.end_cut) return {0, 1, 0, 0};
    const int32 first_cta = unit.first_cut - 1;
    return {cta - first_cta, unit.end_cut - first_cta, 2 * first_cta + 1, first_cta};
  }

  // Each unit has a result of its own; the counters of whole tiles lie behind those of their parts.
  LAZYROPE_DEVICE ItemSplit fixed_split(const Unit& unit) const {
    if (unit.num_parts == 1) return {0, 1, 0, 0};
    const int32 first_counter = (phase_.num_counters + phase_.work.num_ctas) / 2;
    const int32 partial = units_.index_of(unit) - unit.part;
    return {unit.part, unit.num_parts, partial, first_counter + partial};
  }

  const PlanPhase& phase_;
  const Units& units_;
  int32 shares_;
  float per_cost_;  // boundaries
  float share_;     // cost
};

}  // namespace lazyrope
