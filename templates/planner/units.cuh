// The costs of tiles, which step 3 of planning uses, and the units of a step (step 5). A unit is a
// query tile for a head group, with all its blocks or, with fixed splits, with those of one split.
// Units are ordered by head group, then by tile, then by split.
//
// Inputs are the blocks of each tile and the prefix sums of costs and splits (PlanTable), and the
// costs of PlanPhase and of planner/policy.h. The schedules ask Units where a unit is and what it
// costs.
#pragma once

#include "ops/cta_scan.cuh"
#include "planner/policy.h"
#include "planner/tables.cuh"

namespace lazyrope {

LAZYROPE_DEVICE int32 limited_cost(const PlanPhase& phase, int32 blocks, int32 segments,
                                   int32 max) {
  const int32 of_blocks = smaller(blocks, max / kBlockCost) * kBlockCost;
  return smaller(phase.work_tile_cost + of_blocks + smaller(segments, max) * kSegmentCost, max);
}
LAZYROPE_DEVICE int32 tile_cost(const PlanPhase& phase, int32 blocks, int32 segments) {
  return limited_cost(phase, blocks, segments, kMaxTileCost);
}
// Returns the cost of one fixed split. All splits of a tile count as much as the first.
LAZYROPE_DEVICE int32 split_cost(const PlanPhase& phase, int32 split_blocks) {
  return limited_cost(phase, split_blocks, 0, kMaxTileCost / kMaxFixedSplits);
}

struct Quotient {
  int32 whole;
  int32 rest;
};
// Returns a / b and a % b: exact if the quotient is below 2^20, otherwise approximate. This is
// faster than an integer division.
LAZYROPE_DEVICE Quotient divide(int32 a, int32 b) {
  auto whole =
      static_cast<int32>(static_cast<float>(a) * rcp_approx_ftz_f32(static_cast<float>(b)));
  int32 rest = a - whole * b;
  const int32 correction = rest < 0 ? -1 : rest >= b ? 1 : 0;
  return {whole + correction, rest - correction * b};
}

LAZYROPE_DEVICE int32 divide_up(int32 a, int32 b) { return divide(a + b - 1, b).whole; }

// Returns the greatest number of fixed splits of a tile. Of all requests of the step only the
// tile's own matters, because the division must be the same in every batch (batch_invariant).
LAZYROPE_DEVICE int32 max_fixed_splits(const PlanPhase& phase, int32 request_tiles) {
  if (phase.allows_round_robin == 0) return kMaxFixedSplits;
  const int32 units = smaller(request_tiles, kMaxRequestSplits) * phase.max_head_groups;
  return larger(smaller(divide(kMaxRequestSplits, units).whole, kMaxFixedSplits), 1);
}

// Returns the blocks of each fixed split of a tile but the last, which may be shorter. A tile has
// the fewest splits of at most `max` blocks. If these are more than max_splits, its splits are
// longer.
LAZYROPE_DEVICE int32 blocks_per_fixed_split(int32 num_blocks, int32 max, int32 max_splits) {
  return divide_up(num_blocks, larger(smaller(divide_up(num_blocks, max), max_splits), 1));
}

struct UnitCoord {
  int32 group;  // head group
  int32 tile;
  int32 split;  // fixed split of the tile; 0 without fixed splits
};

struct Unit {
  UnitCoord coord;
  int32 num_splits;
  int32 first_block;  // counted from the tile's first block
  int32 end_block;
  int32 split_blocks;  // blocks of each fixed split but the tile's last
};

struct Units {
  const PlanTable& tiles;
  int32 fixed_split_blocks;  // 0: no fixed splits
  int32 num_tiles = 0;
  int32 num_heads = 1;  // KV heads of a work tile
  int32 num_groups = 0;
  int32 units_per_group = 0;
  int32 group_cost = 0;
  // Costs are divided by 2^lost_bits. This is 0 unless the cost of a head group exceeds
  // max_group_cost, as with hundreds of decode requests, or one prefill, of a million tokens.
  int32 lost_bits = 0;

  LAZYROPE_DEVICE int32 count() const { return num_groups * units_per_group; }
  LAZYROPE_DEVICE int32 cost() const { return group_cost * num_groups; }
  LAZYROPE_DEVICE int64 unscaled_cost() const { return static_cast<int64>(cost()) << lost_bits; }
  LAZYROPE_DEVICE int32 scaled(int32 cost) const { return cost >> lost_bits; }
  // Returns the cost of a tile for one head group.
  LAZYROPE_DEVICE int32 cost_of(int32 tile) const {
    return tiles.cost_begin.get(tile + 1) - tiles.cost_begin.get(tile);
  }

  LAZYROPE_DEVICE bool has_fixed_splits() const { return fixed_split_blocks > 0; }

  LAZYROPE_DEVICE UnitCoord coord_of(int32 index) const {
    const auto [group, in_group] = divide(index, units_per_group);
    if (!has_fixed_splits()) return {group, in_group, 0};
    const auto begin = [&](int32 tile) { return tiles.split_begin.get(tile); };
    const int32 tile = upper_bound(num_tiles, in_group, begin) - 1;
    return {group, tile, in_group - begin(tile)};
  }
  LAZYROPE_DEVICE int32 index_of(const UnitCoord& at) const {
    const int32 in_group = has_fixed_splits() ? tiles.split_begin.get(at.tile) + at.split : at.tile;
    return at.group * units_per_group + in_group;
  }
  // Returns the unit after `coord`. After the last unit, its group is num_groups.
  LAZYROPE_DEVICE UnitCoord next(const UnitCoord& coord) const {
    const auto [group, tile, split] = coord;
    if (split + 1 < num_splits(tile)) return {group, tile, split + 1};
    const bool is_last = tile + 1 == num_tiles;
    return {group + (is_last ? 1 : 0), is_last ? 0 : tile + 1, 0};
  }

  LAZYROPE_DEVICE int32 num_splits(int32 tile) const {
    return has_fixed_splits() ? tiles.split_begin.get(tile + 1) - tiles.split_begin.get(tile) : 1;
  }
  // Returns the unit of a tile as it is without fixed splits: with all blocks.
  LAZYROPE_DEVICE Unit whole_unit(const UnitCoord& coord) const {
    const int32 num_blocks = tiles.rows.get(coord.tile).num_blocks;
    return {coord, 1, 0, num_blocks, num_blocks};
  }
  LAZYROPE_DEVICE Unit at(const UnitCoord& coord) const {
    Unit unit = whole_unit(coord);
    if (!has_fixed_splits()) return unit;
    unit.num_splits = num_splits(coord.tile);
    unit.split_blocks = divide_up(unit.end_block, unit.num_splits);
    unit.first_block = coord.split * unit.split_blocks;
    if (coord.split + 1 < unit.num_splits) unit.end_block = unit.first_block + unit.split_blocks;
    return unit;
  }

  // Fills in the fields of a work tile that follow from its unit. The work tile has blocks `first`
  // to `end` - 1 of the tile.
  LAZYROPE_DEVICE void describe(WorkTile& work_tile, const UnitCoord& unit, int32 first,
                                int32 end) const {
    const TileRows rows = tiles.rows.get(unit.tile);
    const TileKeys keys = tiles.keys.get(unit.tile);
    work_tile.extent = {end - first, rows.num_rows, keys.first_position, keys.last_position};
    work_tile.rows = {rows.query_token, rows.first_row, unit.group * num_heads, num_heads};
    work_tile.keys = {keys.segment, keys.segment_end, first, -1};
  }
};

}  // namespace lazyrope
