// Launch parameters of the planner, which turns the caller's metadata into a step.
#pragma once

#include "abi/step.h"

namespace lazyrope {

// The caller's arrays, int32 on the device; README.md gives their meaning.
struct StepInputs {
  const int32* q_indptr;        // [requests + 1]
  const int32* segment_indptr;  // [requests + 1]
  int32 num_requests;
  int32 num_segments;
  int32 num_tokens;
  int32 page_size;
  const int32* q_position;  // [query tokens]
  const int32* base;        // [segments]
  const int32* start;
  const int32* length;
  const int32* lead;  // may be null: all zero
  const int32* first_page;
  const int32* pages;
};
static_assert(sizeof(StepInputs) == 88);

// A divisor, at least 2, of numbers from 0 to 2^31 - 1: what they are multiplied by, and how far
// the upper 32 bits of the product are then shifted.
struct Divisor {
  int32 value;
  uint32 multiplier;
  int32 shift;
};

// With 2^bits >= value > 2^(bits - 1), multiplier / 2^(31 + bits) exceeds 1 / value by less than
// 2^bits / value / 2^(31 + bits): too little for a quotient to become wrong.
constexpr Divisor divisor(int32 value) {
  int32 bits = 1;
  while ((int64{1} << bits) < value) ++bits;
  const auto wide = static_cast<uint64>(value);
  const uint64 multiplier = ((uint64{1} << (31 + bits)) + wide - 1) / wide;
  return {value, static_cast<uint32>(multiplier), bits - 1};
}

constexpr int32 quotient(int32 number, const Divisor& by) {
  const uint64 product = static_cast<uint64>(static_cast<uint32>(number)) * by.multiplier;
  return static_cast<int32>(static_cast<uint32>(product >> 32) >> by.shift);
}
constexpr int32 ceil_div(int32 number, const Divisor& by) {
  return quotient(number + by.value - 1, by);
}

// A tile of a request's packed rows, and the keys that they see: what all its work tiles have of
// it.
struct alignas(16) TileRows {
  int32 query_token;  // row of q with the request's first token
  int32 first_row;    // packed, of the request
  int32 num_rows;
  int32 num_blocks;
};
struct alignas(16) TileKeys {
  int32 first_position;
  int32 last_position;
  int32 segment;  // the first that the rows see
  int32 segment_end;
};

// What a planner tells the others of a tile.
struct alignas(16) TileMeasurement {
  int32 blocks;
  int32 segments;
  int32 first_segment;  // that is seen
  int32 first_position;
  int32 last_position;
  int32 unused[3];
};
static_assert(sizeof(TileMeasurement) == 32);

// The planner's table of tiles lies in shared memory where it has room for all that a step may
// have. Otherwise each CTA of the planner has one here. Of a tile it has its rows and keys, its
// cost and fixed parts, and sums of both over those before, the last of which are sums over all.
inline constexpr int32 kSharedTiles = 1024;
inline constexpr int32 kPlanTileBytes = sizeof(TileRows) + sizeof(TileKeys) + 16;
constexpr int64 plan_table_bytes(int32 tiles) { return (int64{tiles} + 1) * kPlanTileBytes; }
struct PlanScratch {
  uint8* tables;  // null: in shared memory
  // Of all planners: planner/tile_exchange.cuh. Null where a step never has many tiles, or one
  // planner.
  TileMeasurement* measurements;
  uint32* counter;
  int32 max_tiles;
  int32 max_work_tiles;
};
static_assert(sizeof(PlanScratch) == 32);

// Lanes of a planner that look at a work tile together, or at a tile: fewer, so that half of the
// warps have none of a decode step's, and leave the others the time. How many tiles a planner
// measures without others.
inline constexpr int32 kPlanThreads = 512;
inline constexpr int32 kGroupLanes = 8;
inline constexpr int32 kTileLanes = 4;
inline constexpr int32 kTilesAtOnce = 64;
static_assert(kTilesAtOnce * kTileLanes <= kPlanThreads);

// One attend kernel's share: requests with min_rows to max_rows packed rows per KV head.
struct PlanPhase {
  WorkView work;
  PlanScratch scratch;
  int32 min_rows;
  int32 max_rows;
  Divisor tile_rows;
  Divisor block_keys;
  int32 min_split_blocks;  // at a tile's ends no part is shorter
  int32 min_heads;         // KV heads that a work tile has at the least,
  int32 max_heads;         // and at most: powers of two that divide their number
  int32 max_head_groups;   // of heads: KV heads / min_heads
  // Not 0: a tile is cut into equal parts, the last of which may be shorter: as many as have so
  // many blocks, but at most as many as the request alone lets it have, whatever else there is.
  int32 fixed_split_blocks;
  int32 num_counters;
  int32 work_tile_cost;      // of a work tile beside its blocks, each of which costs kBlockCost
  int32 allows_round_robin;  // not 0: units are dealt out whole where that loses little
  int32 ctas_at_once;        // that get an SM each, one after the other
  int32 has_queue;           // not 0: CTAs can take units from a queue
  int32 max_cost;            // of a group of heads: kMaxStepCost / max_head_groups
  int32 short_cost;  // of a share, up to which CTAs sooner get whole units than equal shares
};
static_assert(sizeof(PlanPhase) == 48 + 32 + 80);

inline constexpr int32 kBlockCost = 8;
// Of a step, so that an int32 has room for it and for what it is compared with.
inline constexpr int32 kMaxStepCost = 1 << 30;
// No tile counts as more blocks, so no part needs to be longer.
inline constexpr int32 kMaxSplitBlocks = 1 << 19;

inline constexpr int32 kMaxFixedSplits = 16;
// Parts that a request's tiles, for all KV heads, have together at the most where units may be
// dealt, unless there are more tiles: about as many as a GPU has SMs.
inline constexpr int32 kMaxRequestSplits = 128;
inline constexpr int kPlanPhases = 2;

// What is needed first lies in a line of the constant cache that is there as the kernel begins.
struct PlanParams {
  int32 num_planners;  // CTAs of each phase, which all plan it and divide the writing
  int32 unused;
  StepInputs inputs;
  Divisor page_size;
  int32 also_unused;
  StepView step;
  PlanPhase phase[kPlanPhases];
};
static_assert(sizeof(PlanParams) == 8 + 88 + 16 + 24 + 2 * 160);

}  // namespace lazyrope
