// A step's units laid end to end by cost and cut into equal shares, one for each CTA of the attend
// kernel: the tail of a unit, some whole units, the head of another.
//
// Shares begin at boundaries. What is asked of these is how many lie before a point of the line, a
// product: nobody writes them down, and no CTA waits for it. CTAs side by side have shares of
// different heads, at the same place in each: tokens' heads, neighbours in memory, are then read
// together. No SM has two while another has none; beyond that, those without a share are spread
// out, for neighbours may share the way to memory, too.
//
// Where units are alike and shares short, these are whole units, or where they are shorter still
// equal parts of one, if that takes few CTAs less: a unit that is cut elsewhere is one work tile
// more for some CTA, and parts to merge. With long shares that counts for less than that all CTAs
// have one. A single request whose tile is a few parts of the least length is cut into just these.
#pragma once

#include "ops/lanes.cuh"
#include "planner/units.cuh"

namespace lazyrope {

class StreamKSchedule {
 public:
  LAZYROPE_DEVICE StreamKSchedule(const PlanPhase& phase, const Units& units)
      : phase_(phase), units_(units) {}

  // Before anything is asked.
  LAZYROPE_DEVICE void partition() {
    work_tile_cost_ = units_.scaled(phase_.work_tile_cost);
    min_split_blocks_ = phase_.min_split_blocks;
    min_cost_ = min_cost(min_split_blocks_);
    shares_ = units_.count() == 0 ? 0 : max_shares(units_.group_cost);
    if (!are_short(phase_.short_cost))
      lengthen_splits();
    else if (!partition_single_tile() && are_uniform())
      match_whole_units();
    const auto cost = static_cast<float>(group_begin(units_.num_groups));
    per_cost_ = static_cast<float>(shares_) * rcp_approx_ftz_f32(cost);
    share_ = cost * rcp_approx_ftz_f32(static_cast<float>(shares_));
    num_ctas_ = (divide(shares_ - 1, phase_.ctas_at_once).whole + 1) * phase_.ctas_at_once;
    of_group_ = divide(shares_, units_.num_groups);
    groups_of_share_ =
        static_cast<float>(units_.num_groups) * rcp_approx_ftz_f32(static_cast<float>(shares_));
    tile_step_ = search_step<kGroupLanes>(units_.num_tiles);
  }

  // The first work tile of each CTA, then, by its number, one for each unit with which a CTA goes
  // on.
  LAZYROPE_DEVICE int32 num_work_tiles() const { return phase_.work.num_ctas + units_.count(); }

  // By all lanes of a warp, each group for a work tile, of which there may be none: all of it but
  // where it starts. That of a CTA without work is empty.
  LAZYROPE_DEVICE void describe(WorkTile& work_tile, int32 index) const {
    const int32 num_ctas = phase_.work.num_ctas;
    int32 share = index < num_ctas ? share_of(index) : -1;
    if (shares_ == 0) return;
    UnitCoord coord{};
    if (vote_sync_any(share >= 0)) coord = coord_of(smaller(larger(share, 0), shares_ - 1));
    bool exists = share < shares_ && index < num_work_tiles();
    if (share < 0) coord = units_.coord_of(index - num_ctas);
    exists = exists && coord.group < units_.num_groups;
    const Piece piece = take_piece(coord, share);
    if (!exists || !piece.exists) return;
    units_.describe(work_tile, coord, piece.first, piece.end);
    work_tile.keys.next = piece.next;
    work_tile.split = piece.split;
    // Behind a tile's last part its CTA may have more to do; of fixed ones it may have several.
    work_tile.num_combiners = units_.has_fixed_splits() ? 0 : piece.split.count - 1;
  }

 private:
  static constexpr int32 kTolerance = 16;  // one part in so many

  // A CTA's, or shares_ where it has none. Of the CTAs that have one, those side by side have the
  // same one of as many groups of shares as there are groups of heads.
  LAZYROPE_DEVICE int32 share_of(int32 cta) const {
    const Quotient rank = divide(cta * shares_, num_ctas_);
    if (cta >= num_ctas_ || rank.rest + shares_ < num_ctas_) return shares_;  // as that of the next
    const auto [in_group, group] = divide(rank.whole, units_.num_groups);
    return group * of_group_.whole + smaller(group, of_group_.rest) + in_group;
  }

  // Of a line of such groups.
  LAZYROPE_DEVICE int32 max_shares(int32 group_cost) const {
    const auto cost = static_cast<float>(group_cost * units_.num_groups);
    const float max = cost * rcp_approx_ftz_f32(static_cast<float>(min_cost(min_split_blocks_)));
    const auto num_ctas = static_cast<float>(phase_.work.num_ctas);
    return larger(static_cast<int32>(max < num_ctas ? max : num_ctas), 1);
  }

  // More than a share at the least, so that two boundaries never meet inside of a unit, however
  // they are rounded.
  LAZYROPE_DEVICE int32 min_cost(int32 min_split_blocks) const {
    return units_.scaled(min_share_cost(min_split_blocks)) + 1;
  }

  // All tiles together cost about what so many first ones would.
  LAZYROPE_DEVICE bool are_uniform() const {
    if (units_.has_fixed_splits() || units_.num_tiles == 0) return false;
    const int64 first = warp_uniform(units_.tiles.cost_begin.get(1));
    const int64 difference = first * units_.num_tiles - units_.group_cost;
    return larger(difference, -difference) * kTolerance <= units_.group_cost;
  }

  // Measured on H200s: some megabytes are the most that is worth whole units, some less the most
  // that is worth equal parts of one.
  LAZYROPE_DEVICE int32 short_split() const { return phase_.short_cost * 2 / 5; }
  LAZYROPE_DEVICE bool are_short(int32 share_cost) const {
    return units_.cost() <= share_cost * shares_;
  }

  // A part of few blocks is worth its work tile and the merging where little else is done.
  LAZYROPE_DEVICE void lengthen_splits() {
    const int32 longer = 2 * phase_.min_split_blocks;
    if (units_.cost() >= static_cast<int64>(min_cost(longer)) * shares_) min_split_blocks_ = longer;
    min_cost_ = min_cost(min_split_blocks_);
  }

  // A single tile's heads: as boundaries lie a whole part apart, those inside are half a part or
  // more from its ends.
  LAZYROPE_DEVICE bool partition_single_tile() {
    constexpr int32 kMaxSplits = 32;  // more take longer to merge
    if (units_.has_fixed_splits() || phase_.allows_round_robin != 0 || units_.num_tiles != 1)
      return false;
    const int32 blocks = warp_uniform(units_.tiles.rows.get(0).num_blocks);
    const int32 splits = divide(blocks, min_split_blocks_).whole;
    if (splits < 2 || splits > kMaxSplits) return false;
    const int32 shares = splits * units_.num_groups;
    if (shares > phase_.work.num_ctas) return false;
    shares_ = shares;
    work_tile_cost_ = 0;
    min_cost_ = min_split_blocks_ * kBlockCost / 2;
    return true;
  }

  LAZYROPE_DEVICE void match_whole_units() {
    const int32 units = units_.count();
    if (units > shares_) {
      const Quotient of_share = divide(units, shares_);
      const int32 max_units = of_share.whole + (of_share.rest > 0 ? 1 : 0);
      const int32 shares = divide(units, max_units).whole;
      if (shares * max_units == units && is_near(shares, shares_)) shares_ = shares;
      return;
    }
    // Every CTA has one work tile: all spend as much beside its blocks, which then does not count.
    const int32 of_blocks = units_.group_cost - units_.num_tiles * phase_.work_tile_cost;
    if (of_blocks == 0) return;
    const int32 max = max_shares(of_blocks);
    const int32 splits = drop_needless_splits(divide(max, units).whole, max);
    const int32 shares = splits * units;
    if (shares == 0 || !is_near(shares, max)) return;
    if (splits > 1 && !are_short(short_split())) return;
    shares_ = shares;
    work_tile_cost_ = 0;
  }
  // No more parts than have as few blocks as the longest of so many, unless too few CTAs are left:
  // a tile of 256 blocks is cut into 32 parts, not into 33, most of which would have as many.
  LAZYROPE_DEVICE int32 drop_needless_splits(int32 splits, int32 max) const {
    if (splits <= 1) return splits;
    const int32 blocks = warp_uniform(units_.tiles.rows.get(0).num_blocks);
    const int32 min_splits = divide_up(blocks, larger(divide_up(blocks, splits), 1));
    return is_near(min_splits * units_.count(), max) ? min_splits : splits;
  }
  LAZYROPE_DEVICE static bool is_near(int32 shares, int32 max) {
    return shares * kTolerance >= max * (kTolerance - 1);
  }

  // A unit on the line. Boundaries near its ends are moved there, those between lie inside of it.
  struct UnitSpan {
    Unit unit;
    int32 begin;  // of its tile
    int32 end;
    int32 first_boundary;  // boundaries before the first inside: also those at its beginning
    int32 end_boundary;    // boundaries before the end, without those moved there
  };

  // Does not decrease with the point.
  LAZYROPE_DEVICE int32 boundaries_before(int32 point) const {
    const float boundaries = static_cast<float>(point) * per_cost_;
    auto whole = static_cast<int32>(boundaries);
    if (static_cast<float>(whole) < boundaries) ++whole;
    return smaller(whole, shares_);
  }

  // Whether that is more than a boundary's number, of which it needs no rounding.
  LAZYROPE_DEVICE bool is_after(int32 point, int32 boundary) const {
    return static_cast<float>(point) * per_cost_ > static_cast<float>(boundary);
  }

  LAZYROPE_DEVICE UnitSpan unit_span(const Unit& unit) const {
    const auto [group, tile, split] = unit.coord;
    const int32 begin = tile_begin(group, tile);
    const int32 end = tile_begin(group, tile + 1);
    if (units_.has_fixed_splits()) {
      const int32 boundaries = boundaries_before(split_end(unit, begin, end));
      return {unit, begin, end, boundaries, boundaries};
    }
    return {unit, begin, end, boundaries_before(first_inside(begin, end)),
            boundaries_before(end_inside(begin, end))};
  }
  LAZYROPE_DEVICE int32 split_end(const Unit& unit, int32 begin, int32 end) const {
    const int32 splits = unit.coord.split + 1;
    if (splits == unit.num_splits) return end;
    return smaller(begin + units_.scaled(splits * split_cost(phase_, unit.split_blocks)), end);
  }

  // What the work tile of a share has of a unit in which, or before which, the share begins; that
  // of no share, -1, has the unit's beginning.
  struct Piece {
    bool exists;
    int32 first;  // block of the unit
    int32 end;
    int32 next;  // work tile of the CTA that has the unit's end
    KvSplit split;
  };
  // Half of the group looks at the unit, the other half at the next, which takes no longer; what
  // the first half then finds all are told.
  LAZYROPE_DEVICE Piece take_piece(const UnitCoord& coord, int32 share) const {
    const UnitCoord next = units_.next(coord);
    const bool is_own = of_half() == 0;
    const UnitSpan unit =
        unit_span(units_.at({is_own ? coord.group : next.group, is_own ? coord.tile : next.tile,
                             is_own ? coord.split : next.split}));
    const int32 next_boundary = from_half(unit.first_boundary, 1);
    const bool exists =
        share < 0 || share + 1 >= unit.first_boundary;  // else the next begins there, too
    const bool begins_inside = share >= unit.first_boundary;
    if (!begins_inside) share = unit.first_boundary - 1;
    const bool ends_inside = share + 1 < unit.end_boundary;
    const bool continues =
        !ends_inside && next.group < units_.num_groups && next_boundary == unit.end_boundary;
    // Both in any case: a branch takes longer.
    const float of_cost = blocks_of_cost(unit);
    const int32 inside[] = {block_at(unit, of_cost, share), block_at(unit, of_cost, share + 1)};
    const int32 first = begins_inside ? inside[0] : unit.unit.first_block;
    const int32 end = ends_inside ? inside[1] : unit.unit.end_block;
    const KvSplit split = split_of(unit, share);
    const auto leader_value = [](int32 value) { return from_half(value, 0); };
    return {leader_value(exists ? 1 : 0) != 0,
            leader_value(first),
            leader_value(end),
            leader_value(continues ? phase_.work.num_ctas + units_.index_of(next) : -1),
            {leader_value(split.index), leader_value(split.count), leader_value(split.partial),
             leader_value(split.counter)}};
  }
  // Of a group of lanes.
  LAZYROPE_DEVICE static int32 of_half() { return lane_index() / (kGroupLanes / 2) % 2; }
  LAZYROPE_DEVICE static int32 from_half(int32 value, int32 half) {
    return group_shfl<kGroupLanes>(value, half * (kGroupLanes / 2));
  }

  LAZYROPE_DEVICE int32 group_begin(int32 group) const {
    return group * (units_.group_cost - units_.num_tiles * excluded_cost());
  }
  LAZYROPE_DEVICE int32 tile_begin(int32 group, int32 tile) const {
    return group_begin(group) + units_.tiles.cost_begin.get(tile) - tile * excluded_cost();
  }
  // Of each tile's cost.
  LAZYROPE_DEVICE int32 excluded_cost() const {
    return units_.scaled(phase_.work_tile_cost) - work_tile_cost_;
  }

  // What a work tile costs beside its blocks is spent before the first of them.
  LAZYROPE_DEVICE int32 first_inside(int32 begin, int32 end) const {
    return smaller(begin + work_tile_cost_ + min_cost_, end);
  }
  LAZYROPE_DEVICE int32 end_inside(int32 begin, int32 end) const {
    return larger(end - min_cost_, first_inside(begin, end));
  }

  // All cost the same, so that rounding moves a boundary to the next at the most.
  LAZYROPE_DEVICE int32 group_of(int32 boundary) const {
    const auto near = static_cast<int32>(static_cast<float>(boundary) * groups_of_share_);
    const int32 group = smaller(near, units_.num_groups - 1);
    const bool is_before = is_after(group_begin(group), boundary);
    const bool is_next =
        group + 1 < units_.num_groups && !is_after(group_begin(group + 1), boundary);
    return group - (is_before ? 1 : 0) + (is_next ? 1 : 0);
  }

  // The unit inside of which a boundary lies, or to whose beginning it is moved: none lies inside
  // of a part.
  LAZYROPE_DEVICE UnitCoord coord_of(int32 boundary) const {
    const int32 group = group_of(boundary);
    const auto ends_after = [&](int32 tile) {
      const int32 begin = tile_begin(group, tile);
      const int32 end = tile_begin(group, tile + 1);
      return is_after(units_.has_fixed_splits() ? end : end_inside(begin, end), boundary);
    };
    UnitCoord coord = {
        group, lower_bound_by_lanes<kGroupLanes>(units_.num_tiles, tile_step_, ends_after), 0};
    if (coord.tile == units_.num_tiles) return {group + 1, 0, 0};
    if (!units_.has_fixed_splits()) return coord;
#pragma unroll 1
    for (; coord.split + 1 < units_.num_splits(coord.tile); ++coord.split)
      if (boundary < unit_span(units_.at(coord)).end_boundary) break;
    return coord;
  }

  LAZYROPE_DEVICE float blocks_of_cost(const UnitSpan& unit_span) const {
    const int32 cost = larger(unit_span.end - unit_span.begin - work_tile_cost_, 1);
    return static_cast<float>(unit_span.unit.end_block) *
           rcp_approx_ftz_f32(static_cast<float>(cost));
  }

  // The same for the CTA that ends there and for the one that begins: no product is added to
  // anything, which a compiler may round once or twice.
  LAZYROPE_DEVICE int32 block_at(const UnitSpan& unit_span, float of_cost, int32 boundary) const {
    const int32 into = static_cast<int32>(static_cast<float>(boundary) * share_) - unit_span.begin -
                       work_tile_cost_;
    const auto block = static_cast<int32>(static_cast<float>(into + kBlockCost / 2) * of_cost);
    return smaller(larger(block, min_split_blocks_), unit_span.unit.end_block - min_split_blocks_);
  }

  // Shares a to b hold a unit's parts: they use results 2 a + 1 to a + b + 1 and counter a. The
  // next unit that is cut has its first part in share b or later.
  LAZYROPE_DEVICE KvSplit split_of(const UnitSpan& unit, int32 share) const {
    if (units_.has_fixed_splits()) return fixed_split(unit.unit);
    if (unit.first_boundary == unit.end_boundary) return {0, 1, 0, 0};
    const int32 first = unit.first_boundary - 1;
    return {share - first, unit.end_boundary - first, 2 * first + 1, first};
  }

  // Each unit has a result of its own; the counters of whole tiles lie behind those of their parts.
  LAZYROPE_DEVICE KvSplit fixed_split(const Unit& unit) const {
    if (unit.num_splits == 1) return {0, 1, 0, 0};
    const int32 first_counter = (phase_.num_counters + phase_.work.num_ctas) / 2;
    const int32 partial = units_.index_of(unit.coord) - unit.coord.split;
    return {unit.coord.split, unit.num_splits, partial, first_counter + partial};
  }

  const PlanPhase& phase_;
  const Units& units_;
  int32 work_tile_cost_ = 0;    // that counts
  int32 min_split_blocks_ = 0;  // likewise
  int32 min_cost_ = 0;          // cost from a unit's ends to the first boundary inside of it
  int32 shares_ = 0;
  int32 num_ctas_ = 0;   // of which as many as there are shares have one
  Quotient of_group_{};  // shares of a group of heads, and how many groups have one more
  int32 tile_step_ = 0;  // of a search
  float groups_of_share_ = 0.0f;
  float per_cost_ = 0.0f;  // boundaries
  float share_ = 0.0f;     // cost
};

}  // namespace lazyrope
