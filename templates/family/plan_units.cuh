// What a step's work consists of: the tiles of the first KV head, or of as many as an item has,
// then those of the next ... Each is a unit, or as many units as it has fixed parts.
#pragma once

#include "family/plan_tables.cuh"
#include "ops/cta_scan.cuh"

namespace lazyrope {

// Of a tile's fixed parts, from its number of blocks alone.
LAZYROPE_DEVICE int32 fixed_part_blocks(int32 num_blocks, int32 least) {
  int32 blocks = least;
#pragma unroll 1
  while ((num_blocks - 1) / kMostFixedParts >= blocks) blocks *= 2;
  return blocks;
}

struct Unit {
  int32 tile;
  int32 group;  // of heads
  int32 part;   // of num_parts fixed parts
  int32 num_parts;
  int32 first_block;  // of the tile
  int32 end_block;
};

template <class Tiles>
struct Units {
  const Tiles& tiles;
  int32 fixed_split_blocks;  // or 0
  int32 num_tiles;
  int32 num_heads;  // of an item
  int32 num_groups;
  int32 per_group = 0;
  int64 group_cost = 0;

  LAZYROPE_DEVICE int32 count() const { return num_groups * per_group; }

  LAZYROPE_DEVICE Unit get(int32 index) const {
    const int32 group = index / per_group;
    const int32 in_group = index - group * per_group;
    return fixed_split_blocks > 0 ? fixed(group, in_group) : whole(group, in_group);
  }

 private:
  LAZYROPE_DEVICE Unit whole(int32 group, int32 tile) const {
    return {tile, group, 0, 1, 0, tiles.rows.get(tile).num_blocks};
  }

  LAZYROPE_DEVICE Unit fixed(int32 group, int32 index) const {
    const auto part_begin = [&](int32 tile) { return tiles.part_begin.get(tile); };
    const int32 tile = upper_bound(num_tiles, index, part_begin) - 1;
    const int32 begin = part_begin(tile);
    const int32 num_blocks = tiles.rows.get(tile).num_blocks;
    const int32 part = index - begin;
    const int32 blocks = fixed_part_blocks(num_blocks, fixed_split_blocks);
    return {tile,          group,
            part,          part_begin(tile + 1) - begin,
            part * blocks, smaller((part + 1) * blocks, num_blocks)};
  }
};

// Units dealt out to CTAs: where there are more CTAs, each unit in as many equal parts as there are
// CTAs for; else whole, in turns, to and fro, so that the first units weigh no more than the last.
// What CTAs do at the same time is as near in the line as can be.
struct Deal {
  int32 num_ctas;
  int32 num_units;
  int32 num_parts;  // of a unit

  LAZYROPE_DEVICE Deal(int32 num_ctas, int32 num_units)
      : num_ctas(num_ctas),
        num_units(num_units),
        num_parts(larger(num_ctas / larger(num_units, 1), 1)) {}

  LAZYROPE_DEVICE int32 num_rounds() const { return ceil_div(num_units * num_parts, num_ctas); }

  struct Part {
    int32 unit;
    int32 part;
  };
  // Of a CTA in a round; unit num_units or more where it has none.
  LAZYROPE_DEVICE Part at(int32 cta, int32 round) const {
    const int32 index = round * num_ctas + (round % 2 == 0 ? cta : num_ctas - 1 - cta);
    return {index / num_parts, index % num_parts};
  }
  LAZYROPE_DEVICE bool has(int32 cta, int32 round) const { return at(cta, round).unit < num_units; }
};

}  // namespace lazyrope
