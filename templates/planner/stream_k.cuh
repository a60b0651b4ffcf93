// Stream-K schedule: the units' costs are laid end to end and cut into equal shares, one share per
// CTA of the attend kernel. A share is the tail of a unit, some whole units, and the head of
// another. A unit that a boundary cuts becomes KV splits. Decode uses this schedule, and prefill
// where whole units cannot be balanced.
//
// Input: Units and the costs and limits of PlanPhase. Output: describe() gives the work tile of any
// index. The first num_ctas work tiles are the first of each CTA; work tile num_ctas + u is unit u,
// for the CTA that goes on with it.
//
// Share i begins at boundary i, the point i * share_cost_ of the summed cost. The number of
// boundaries before a point is one product, so boundaries are not stored, and no CTA waits for a
// list of them.
//
// CTAs that are neighbours have shares of different groups of heads, at the same point of each
// group: the heads of a token, neighbours in memory, are then read together. No SM gets two shares
// while another has none. CTAs without a share are spread out, as neighbouring SMs may share a path
// to memory.
//
// If shares are short, a share becomes whole units, where the tiles cost about the same, or one of
// the equal splits of a unit. This avoids work tiles and combining, and is done if few CTAs become
// idle. With long shares it matters more that every CTA has a share. Two rules make equal splits,
// as the config chooses: EqualSplits cuts units of any lengths. The other rule, which is there for
// comparison, cuts tiles of about the same cost, and a step's only tile.
#pragma once

#include "ops/lanes.cuh"
#include "planner/equal_splits.cuh"
#include "planner/units.cuh"

namespace lazyrope {

template <class Spec>
class StreamKSchedule {
 public:
  LAZYROPE_DEVICE StreamKSchedule(const PlanPhase& phase, const Units& units)
      : phase_(phase), units_(units), equal_splits_(phase, units) {}

  // Computes the shares. The other functions need it first.
  LAZYROPE_DEVICE void partition() {
    work_tile_cost_ = units_.scaled(phase_.work_tile_cost);
    min_split_blocks_ = phase_.min_split_blocks;
    min_cost_ = min_cost(min_split_blocks_);
    shares_ = units_.count() == 0 ? 0 : max_shares(units_.group_cost);
    if (!are_short(phase_.short_share_cost))
      lengthen_splits();
    else if (cut_equally())
      return spread_shares();
    else if (!partition_single_tile() && are_uniform())
      match_whole_units();
    spread_shares();
    const auto cost = static_cast<float>(group_begin(units_.num_groups));
    boundaries_per_cost_ = static_cast<float>(shares_) * rcp_approx_ftz_f32(cost);
    share_cost_ = cost * rcp_approx_ftz_f32(static_cast<float>(shares_));
    groups_per_share_ =
        static_cast<float>(units_.num_groups) * rcp_approx_ftz_f32(static_cast<float>(shares_));
    search_step_ = search_step<kGroupLanes>(units_.num_tiles);
  }

  // Each CTA has a first work tile, and each unit one for the CTA that goes on with it. After
  // partition() there are fewer with equal splits, because a CTA then has no more than one.
  LAZYROPE_DEVICE int32 num_work_tiles() const {
    return phase_.work.num_ctas + (is_equal_ ? 0 : units_.count());
  }

  // Describes a work tile except for its start, which WorkTileWriter adds. All lanes of a warp take
  // part, each group for its own index. A CTA without work gets an empty work tile.
  LAZYROPE_DEVICE void describe(WorkTile& work_tile, int32 index) const {
    const int32 num_ctas = phase_.work.num_ctas;
    const ShareCoord at = index < num_ctas ? share_of(index) : ShareCoord{0, -1};
    if (shares_ == 0) return;
    if (is_equal_) return equal_splits_.describe(work_tile, at.group, at.in_group, at.exists());
    int32 share = number_of(at);
    UnitCoord coord{};
    if (vote_sync_any(share >= 0)) coord = coord_of(smaller(larger(share, 0), shares_ - 1));
    bool exists = share < shares_ && index < num_work_tiles();
    if (share < 0) coord = units_.coord_of(index - num_ctas);
    exists = exists && coord.group < units_.num_groups;
    const BlockRange range = block_range(coord, share);
    if (!exists || !range.exists) return;
    units_.describe(work_tile, coord, range.first, range.end);
    work_tile.keys.next = range.next;
    work_tile.split = range.split;
    // The CTA of a tile's last split may have more work tiles, so it combines nothing. With fixed
    // splits the same holds for every CTA.
    work_tile.num_combiners = units_.has_fixed_splits() ? 0 : range.split.count - 1;
  }

 private:
  // A share of a CTA: its group of heads, and its place among the group's shares.
  struct ShareCoord {
    int32 group;
    int32 in_group;  // kNone if the CTA has no share, -1 if the work tile is no first one

    static constexpr int32 kNone = 0x7fffffff;
    LAZYROPE_DEVICE bool exists() const { return in_group >= 0 && in_group < kNone; }
  };

  // Returns the share of a CTA. Neighbouring CTAs with shares have the same share of different
  // groups of heads.
  LAZYROPE_DEVICE ShareCoord share_of(int32 cta) const {
    const Quotient rank = divide(cta * shares_, num_spread_ctas_);
    // If the next CTA has the same rank, that CTA has the share.
    if (cta >= num_spread_ctas_ || rank.rest + shares_ < num_spread_ctas_)
      return {0, ShareCoord::kNone};
    const auto [in_group, group] = divide(rank.whole, units_.num_groups);
    return {group, in_group};
  }
  // Returns the number of a share, shares_ if there is none, or -1.
  LAZYROPE_DEVICE int32 number_of(const ShareCoord& at) const {
    if (!at.exists()) return at.in_group < 0 ? -1 : shares_;
    return at.group * shares_per_group_.whole + smaller(at.group, shares_per_group_.rest) +
           at.in_group;
  }

  LAZYROPE_DEVICE void spread_shares() {
    num_spread_ctas_ = (divide(shares_ - 1, phase_.sm_count).whole + 1) * phase_.sm_count;
    shares_per_group_ = divide(shares_, units_.num_groups);
  }

  // Returns the greatest number of shares if each group costs group_cost: one per CTA, unless
  // shares would become too short.
  LAZYROPE_DEVICE int32 max_shares(int32 group_cost) const {
    const auto cost = static_cast<float>(group_cost * units_.num_groups);
    const float max = cost * rcp_approx_ftz_f32(static_cast<float>(min_cost(min_split_blocks_)));
    const auto num_ctas = static_cast<float>(phase_.work.num_ctas);
    return larger(static_cast<int32>(max < num_ctas ? max : num_ctas), 1);
  }

  // Returns the least cost of a share, plus 1. Two boundaries are then never inside of one split,
  // however they are rounded.
  LAZYROPE_DEVICE int32 min_cost(int32 min_split_blocks) const {
    return units_.scaled(min_share_cost(min_split_blocks)) + 1;
  }

  // Returns true if all tiles together cost about as much as num_tiles copies of the first.
  LAZYROPE_DEVICE bool are_uniform() const {
    if (units_.has_fixed_splits() || units_.num_tiles == 0) return false;
    const int64 first = warp_uniform(units_.tiles.cost_begin.get(1));
    const int64 difference = first * units_.num_tiles - units_.group_cost;
    return larger(difference, -difference) * kShareTolerance <= units_.group_cost;
  }

  // Returns true if shares cost at most `share_cost` on average.
  LAZYROPE_DEVICE bool are_short(int32 share_cost) const {
    return units_.cost() <= share_cost * shares_;
  }

  // Doubles the least length of a split if shares are long enough. A short split is worth its work
  // tile and the combining only in a short step.
  LAZYROPE_DEVICE void lengthen_splits() {
    const int32 longer = 2 * phase_.min_split_blocks;
    if (units_.cost() >= static_cast<int64>(min_cost(longer)) * shares_) min_split_blocks_ = longer;
    min_cost_ = min_cost(min_split_blocks_);
  }

  // Makes each share one of the equal splits of a unit, or returns false.
  LAZYROPE_DEVICE bool cut_equally() {
    if constexpr (Spec::kEqualSplits) {
      is_equal_ = equal_splits_.cut(shares_, are_short(short_split_cost(phase_.short_share_cost)));
      if (is_equal_) shares_ = equal_splits_.splits_per_group() * units_.num_groups;
    }
    return is_equal_;
  }

  // Cuts a step of one tile per group into splits of the least length, if there is a CTA for each.
  // Boundaries are a whole split apart, so those inside of a unit are at least half a split from
  // its ends. Returns false if it changes nothing.
  LAZYROPE_DEVICE bool partition_single_tile() {
    if constexpr (Spec::kEqualSplits) return false;
    if (units_.has_fixed_splits() || phase_.allows_round_robin != 0 || units_.num_tiles != 1)
      return false;
    const int32 blocks = warp_uniform(units_.tiles.rows.get(0).num_blocks);
    const int32 splits = divide(blocks, min_split_blocks_).whole;
    if (splits < 2 || splits > kMaxSingleTileSplits) return false;
    const int32 shares = splits * units_.num_groups;
    if (shares > phase_.work.num_ctas) return false;
    shares_ = shares;
    work_tile_cost_ = 0;
    min_cost_ = min_split_blocks_ * kBlockCost / 2;
    return true;
  }

  // Makes shares whole units, or equal splits of one unit, if that leaves few CTAs without a share.
  LAZYROPE_DEVICE void match_whole_units() {
    const int32 units = units_.count();
    if (units > shares_) {
      const Quotient of_share = divide(units, shares_);
      const int32 max_units = of_share.whole + (of_share.rest > 0 ? 1 : 0);
      const int32 shares = divide(units, max_units).whole;
      if (shares * max_units == units && is_near(shares, shares_)) shares_ = shares;
      return;
    }
    if constexpr (Spec::kEqualSplits) return;
    // Every CTA has one work tile, so the fixed cost of a work tile is the same for all and does
    // not count.
    const int32 of_blocks = units_.group_cost - units_.num_tiles * phase_.work_tile_cost;
    if (of_blocks == 0) return;
    const int32 max = max_shares(of_blocks);
    const int32 splits = drop_needless_splits(divide(max, units).whole, max);
    const int32 shares = splits * units;
    if (shares == 0 || !is_near(shares, max)) return;
    if (splits > 1 && !are_short(short_split_cost(phase_.short_share_cost))) return;
    shares_ = shares;
    work_tile_cost_ = 0;
  }
  // Returns the fewest splits whose longest has as few blocks as with `splits` of them, unless too
  // many CTAs become idle. A tile of 256 blocks is cut into 32 splits, not 33: most of 33 would be
  // as long.
  LAZYROPE_DEVICE int32 drop_needless_splits(int32 splits, int32 max) const {
    if (splits <= 1) return splits;
    const int32 blocks = warp_uniform(units_.tiles.rows.get(0).num_blocks);
    const int32 min_splits = divide_up(blocks, larger(divide_up(blocks, splits), 1));
    return is_near(min_splits * units_.count(), max) ? min_splits : splits;
  }
  LAZYROPE_DEVICE static bool is_near(int32 shares, int32 max) {
    return shares * kShareTolerance >= max * (kShareTolerance - 1);
  }

  // The range of a unit in the summed cost. Boundaries near the unit's ends are moved to the ends;
  // the others are inside of the unit.
  struct UnitRange {
    Unit unit;
    int32 begin;  // where the unit's tile begins in the summed cost
    int32 end;
    int32 first_boundary;  // number of the first boundary inside, or end_boundary
    int32 end_boundary;    // one past the number of the last boundary inside
  };

  // Returns the number of boundaries before a point. It never decreases as the point grows.
  LAZYROPE_DEVICE int32 boundaries_before(int32 point) const {
    const float boundaries = static_cast<float>(point) * boundaries_per_cost_;
    auto whole = static_cast<int32>(boundaries);
    if (static_cast<float>(whole) < boundaries) ++whole;
    return smaller(whole, shares_);
  }

  // Returns true if `point` is after the boundary. The product is compared as it is, without
  // rounding it to an integer.
  LAZYROPE_DEVICE bool is_after(int32 point, int32 boundary) const {
    return static_cast<float>(point) * boundaries_per_cost_ > static_cast<float>(boundary);
  }

  LAZYROPE_DEVICE UnitRange unit_range(const Unit& unit) const {
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

  // The blocks of a unit that one work tile of a share has. The share begins inside of this unit,
  // at its beginning or before. For share -1 the work tile begins at the unit's beginning.
  struct BlockRange {
    bool exists;
    int32 first;  // first block, counted in the tile
    int32 end;
    int32 next;  // the CTA's work tile after the unit's end, or -1
    KvSplit split;
  };
  // Half of the group's lanes look at the unit and the other half at the next unit, at the same
  // time. The first half then broadcasts the result.
  LAZYROPE_DEVICE BlockRange block_range(const UnitCoord& coord, int32 share) const {
    const UnitCoord next = units_.next(coord);
    const bool is_own = lane_half() == 0;
    const UnitRange range =
        unit_range(units_.at({is_own ? coord.group : next.group, is_own ? coord.tile : next.tile,
                              is_own ? coord.split : next.split}));
    const int32 next_boundary = from_half(range.first_boundary, 1);
    // If the next share also begins at the unit's beginning, this share has no block of the unit.
    const bool exists = share < 0 || share + 1 >= range.first_boundary;
    const bool begins_inside = share >= range.first_boundary;
    if (!begins_inside) share = range.first_boundary - 1;
    const bool ends_inside = share + 1 < range.end_boundary;
    const bool continues =
        !ends_inside && next.group < units_.num_groups && next_boundary == range.end_boundary;
    // Both blocks are computed in any case: a branch takes longer.
    const float of_cost = blocks_of_cost(range);
    const int32 inside[] = {block_at(range, of_cost, share), block_at(range, of_cost, share + 1)};
    const int32 first = begins_inside ? inside[0] : range.unit.first_block;
    const int32 end = ends_inside ? inside[1] : range.unit.end_block;
    const KvSplit split = split_of(range, share);
    const auto leader_value = [](int32 value) { return from_half(value, 0); };
    return {leader_value(exists ? 1 : 0) != 0,
            leader_value(first),
            leader_value(end),
            leader_value(continues ? phase_.work.num_ctas + units_.index_of(next) : -1),
            {leader_value(split.index), leader_value(split.count), leader_value(split.partial),
             leader_value(split.counter)}};
  }
  // Returns which half of its group the lane is in, 0 or 1.
  LAZYROPE_DEVICE static int32 lane_half() { return lane_index() / (kGroupLanes / 2) % 2; }
  LAZYROPE_DEVICE static int32 from_half(int32 value, int32 half) {
    return group_shfl<kGroupLanes>(value, half * (kGroupLanes / 2));
  }

  LAZYROPE_DEVICE int32 group_begin(int32 group) const {
    return group * (units_.group_cost - units_.num_tiles * excluded_cost());
  }
  LAZYROPE_DEVICE int32 tile_begin(int32 group, int32 tile) const {
    return group_begin(group) + units_.tiles.cost_begin.get(tile) - tile * excluded_cost();
  }
  // Returns how much of each tile's cost this schedule does not count.
  LAZYROPE_DEVICE int32 excluded_cost() const {
    return units_.scaled(phase_.work_tile_cost) - work_tile_cost_;
  }

  // The cost of a work tile beside its blocks is spent before the first block. Boundaries are
  // inside of a unit from first_inside() to end_inside().
  LAZYROPE_DEVICE int32 first_inside(int32 begin, int32 end) const {
    return smaller(begin + work_tile_cost_ + min_cost_, end);
  }
  LAZYROPE_DEVICE int32 end_inside(int32 begin, int32 end) const {
    return larger(end - min_cost_, first_inside(begin, end));
  }

  // Returns the group in which a boundary is. All groups cost the same, so the approximate quotient
  // is off by one group at most.
  LAZYROPE_DEVICE int32 group_of(int32 boundary) const {
    const auto near = static_cast<int32>(static_cast<float>(boundary) * groups_per_share_);
    const int32 group = smaller(near, units_.num_groups - 1);
    const bool is_before = is_after(group_begin(group), boundary);
    const bool is_next =
        group + 1 < units_.num_groups && !is_after(group_begin(group + 1), boundary);
    return group - (is_before ? 1 : 0) + (is_next ? 1 : 0);
  }

  // Returns the unit that a boundary cuts, or to whose beginning it is moved. A boundary never cuts
  // a fixed split.
  LAZYROPE_DEVICE UnitCoord coord_of(int32 boundary) const {
    const int32 group = group_of(boundary);
    const auto ends_after = [&](int32 tile) {
      const int32 begin = tile_begin(group, tile);
      const int32 end = tile_begin(group, tile + 1);
      return is_after(units_.has_fixed_splits() ? end : end_inside(begin, end), boundary);
    };
    UnitCoord coord = {
        group, lower_bound_by_lanes<kGroupLanes>(units_.num_tiles, search_step_, ends_after), 0};
    if (coord.tile == units_.num_tiles) return {group + 1, 0, 0};
    if (!units_.has_fixed_splits()) return coord;
#pragma unroll 1
    for (; coord.split + 1 < units_.num_splits(coord.tile); ++coord.split)
      if (boundary < unit_range(units_.at(coord)).end_boundary) break;
    return coord;
  }

  LAZYROPE_DEVICE float blocks_of_cost(const UnitRange& range) const {
    const int32 cost = larger(range.end - range.begin - work_tile_cost_, 1);
    return static_cast<float>(range.unit.end_block) * rcp_approx_ftz_f32(static_cast<float>(cost));
  }

  // Returns the block at which a boundary cuts a unit. The CTA that ends there and the CTA that
  // begins there must compute the same block. Therefore no product of floats is added to anything:
  // the compiler may fuse both or not, and the two results are rounded differently.
  LAZYROPE_DEVICE int32 block_at(const UnitRange& range, float of_cost, int32 boundary) const {
    const int32 into = static_cast<int32>(static_cast<float>(boundary) * share_cost_) -
                       range.begin - work_tile_cost_;
    const auto block = static_cast<int32>(static_cast<float>(into + kBlockCost / 2) * of_cost);
    return smaller(larger(block, min_split_blocks_), range.unit.end_block - min_split_blocks_);
  }

  // Returns the KV split of a unit that a share has. If shares a to b have the unit's splits, their
  // partial results are 2 a + 1 to a + b + 1, and their counter is a. The next unit that is cut has
  // its first split in share b or later, so partial results never overlap.
  LAZYROPE_DEVICE KvSplit split_of(const UnitRange& range, int32 share) const {
    if (units_.has_fixed_splits()) return fixed_split(range.unit);
    if (range.first_boundary == range.end_boundary) return {0, 1, 0, 0};
    const int32 first = range.first_boundary - 1;
    return {share - first, range.end_boundary - first, 2 * first + 1, first};
  }

  // Each fixed split has a partial result of its own. The counters of tiles follow the marks of all
  // splits.
  LAZYROPE_DEVICE KvSplit fixed_split(const Unit& unit) const {
    if (unit.num_splits == 1) return {0, 1, 0, 0};
    const int32 first_counter = (phase_.num_counters + phase_.work.num_ctas) / 2;
    const int32 partial = units_.index_of(unit.coord) - unit.coord.split;
    return {unit.coord.split, unit.num_splits, partial, first_counter + partial};
  }

  const PlanPhase& phase_;
  const Units& units_;
  int32 work_tile_cost_ = 0;    // counted cost of a work tile beside its blocks
  int32 min_split_blocks_ = 0;  // least blocks of a split
  int32 min_cost_ = 0;          // least cost between a unit's end and a boundary inside of it
  int32 shares_ = 0;
  EqualSplits equal_splits_;
  bool is_equal_ = false;      // equal_splits_ describes the work tiles
  int32 num_spread_ctas_ = 0;  // CTAs over which shares are spread, a multiple of the SMs
  Quotient
      shares_per_group_{};  // shares of a group of heads; the first `rest` groups have one more
  int32 search_step_ = 0;   // first step of the search in coord_of()
  float groups_per_share_ = 0.0f;
  float boundaries_per_cost_ = 0.0f;  // boundaries per unit of cost
  float share_cost_ = 0.0f;           // cost of a share
};

}  // namespace lazyrope
