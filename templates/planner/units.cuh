// What a step's work consists of: the tiles of the first KV head, or of as many as a work tile has,
// then those of the next ... Each is a unit, or as many units as it has fixed parts.
#pragma once

#include "ops/cta_scan.cuh"
#include "planner/tables.cuh"

namespace lazyrope {

inline constexpr int32 kSegmentCost = kBlockCost / 4;

// Of a share at the least: no block with its segment costs as much as one of these.
LAZYROPE_DEVICE int32 min_share_cost(int32 min_split_blocks) {
  return min_split_blocks * (kBlockCost + kSegmentCost) + 1;
}

// A tile of more, millions of tokens, counts as much: an int32 has room for those of 512 threads.
inline constexpr int32 kMaxTileCost = (1 << 22) - 1;

LAZYROPE_DEVICE int32 limited_cost(const PlanPhase& phase, int32 blocks, int32 segments,
                                   int32 max) {
  const int32 of_blocks = smaller(blocks, max / kBlockCost) * kBlockCost;
  return smaller(phase.work_tile_cost + of_blocks + smaller(segments, max) * kSegmentCost, max);
}
LAZYROPE_DEVICE int32 tile_cost(const PlanPhase& phase, int32 blocks, int32 segments) {
  return limited_cost(phase, blocks, segments, kMaxTileCost);
}
// Of one of a tile's parts, all of which count as much as the first.
LAZYROPE_DEVICE int32 split_cost(const PlanPhase& phase, int32 split_blocks) {
  return limited_cost(phase, split_blocks, 0, kMaxTileCost / kMaxFixedSplits);
}

struct Quotient {
  int32 whole;
  int32 rest;
};
// Exact where the quotient is below 2^20, and sooner there than a division of integers; near
// beyond.
LAZYROPE_DEVICE Quotient divide(int32 a, int32 b) {
  auto whole =
      static_cast<int32>(static_cast<float>(a) * rcp_approx_ftz_f32(static_cast<float>(b)));
  int32 rest = a - whole * b;
  const int32 correction = rest < 0 ? -1 : rest >= b ? 1 : 0;
  return {whole + correction, rest - correction * b};
}

LAZYROPE_DEVICE int32 divide_up(int32 a, int32 b) { return divide(a + b - 1, b).whole; }

// How many fixed parts a tile has at most, from what its request asks alone.
LAZYROPE_DEVICE int32 max_fixed_splits(const PlanPhase& phase, int32 request_tiles) {
  if (phase.allows_round_robin == 0) return kMaxFixedSplits;
  const int32 units = smaller(request_tiles, kMaxRequestSplits) * phase.max_head_groups;
  return larger(smaller(divide(kMaxRequestSplits, units).whole, kMaxFixedSplits), 1);
}

// Of all of a tile's fixed parts but the last: of as many equal ones as have no more than `most`,
// but not more than `most_parts`.
LAZYROPE_DEVICE int32 blocks_per_fixed_split(int32 num_blocks, int32 max, int32 max_splits) {
  return divide_up(num_blocks, larger(smaller(divide_up(num_blocks, max), max_splits), 1));
}

struct UnitCoord {
  int32 group;  // of heads
  int32 tile;
  int32 split;  // of the tile's fixed ones
};

struct Unit {
  UnitCoord coord;
  int32 num_splits;
  int32 first_block;  // of the tile
  int32 end_block;
  int32 split_blocks;  // of all of them but the last
};

struct Units {
  const PlanTable& tiles;
  int32 fixed_split_blocks;  // or 0
  int32 num_tiles = 0;
  int32 num_heads = 1;  // of a work tile
  int32 num_groups = 0;
  int32 per_group = 0;
  int32 group_cost = 0;
  // Costs of a step that would exceed kMaxStepCost, of hundreds of requests of a million tokens,
  // have lost so many bits.
  int32 lost_bits = 0;

  LAZYROPE_DEVICE int32 count() const { return num_groups * per_group; }
  LAZYROPE_DEVICE int32 cost() const { return group_cost * num_groups; }
  LAZYROPE_DEVICE int64 whole_cost() const { return static_cast<int64>(cost()) << lost_bits; }
  LAZYROPE_DEVICE int32 scaled(int32 cost) const { return cost >> lost_bits; }
  // A tile's, of a group.
  LAZYROPE_DEVICE int32 cost_of(int32 tile) const {
    return tiles.cost_begin.get(tile + 1) - tiles.cost_begin.get(tile);
  }

  LAZYROPE_DEVICE bool has_fixed_splits() const { return fixed_split_blocks > 0; }

  LAZYROPE_DEVICE UnitCoord coord_of(int32 index) const {
    const auto [group, in_group] = divide(index, per_group);
    if (!has_fixed_splits()) return {group, in_group, 0};
    const auto begin = [&](int32 tile) { return tiles.split_begin.get(tile); };
    const int32 tile = upper_bound(num_tiles, in_group, begin) - 1;
    return {group, tile, in_group - begin(tile)};
  }
  LAZYROPE_DEVICE int32 index_of(const UnitCoord& at) const {
    const int32 in_group = has_fixed_splits() ? tiles.split_begin.get(at.tile) + at.split : at.tile;
    return at.group * per_group + in_group;
  }
  // Behind the last comes one of the group behind the last.
  LAZYROPE_DEVICE UnitCoord next(const UnitCoord& coord) const {
    const auto [group, tile, split] = coord;
    if (split + 1 < num_splits(tile)) return {group, tile, split + 1};
    const bool is_last = tile + 1 == num_tiles;
    return {group + (is_last ? 1 : 0), is_last ? 0 : tile + 1, 0};
  }

  LAZYROPE_DEVICE int32 num_splits(int32 tile) const {
    return has_fixed_splits() ? tiles.split_begin.get(tile + 1) - tiles.split_begin.get(tile) : 1;
  }
  // Where tiles have no parts.
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

  // All that a work tile of blocks `first` to `end` has of its unit.
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
