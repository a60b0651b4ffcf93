// Launch parameters of the planner (planner/planner.cuh). runtime/step fills them in. The planner
// writes the memory that StepView and WorkView point to.
#pragma once

#include "abi/step.h"

namespace lazyrope {

// The caller's arrays, int32 on the device. README.md gives their meaning.
struct StepInputs {
  const int32* q_indptr;        // [num_requests + 1]
  const int32* segment_indptr;  // [num_requests + 1]
  int32 num_requests;
  int32 num_segments;
  int32 num_tokens;
  int32 page_size;
  const int32* q_position;  // [num_tokens]
  const int32* base;        // [num_segments], like the next four arrays
  const int32* start;
  const int32* length;
  const int32* lead;  // null: all zero
  const int32* first_page;
  const int32* pages;
  const int32* mask_base;  // [num_segments]; null: base
};
static_assert(sizeof(StepInputs) == 96);

// A divisor of at least 2, for dividends from 0 to 2^31 - 1. The quotient is the upper 32 bits of
// dividend * multiplier, shifted right by `shift`.
struct Divisor {
  int32 value;
  uint32 multiplier;
  int32 shift;
};

// Returns the divisor. Rounding the multiplier up changes no quotient: for 2^bits >= value >
// 2^(bits - 1), multiplier / 2^(31 + bits) exceeds 1 / value by less than 1 / 2^(31 + bits). A
// dividend below 2^31 multiplies that to less than 1 / value.
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

// A tile of a request's packed rows, and the keys that they see. The planner writes both to its
// table (planner/tables.cuh) and copies them to every work tile of the tile.
struct alignas(16) TileRows {
  int32 query_token;  // row of q with the request's first token
  int32 first_row;    // first packed row, counted in the request
  int32 num_rows;
  int32 num_blocks;  // KV blocks that the rows see; until measured, the request's number of tiles
};
struct alignas(16) TileKeys {
  int32 first_position;  // least and greatest logical position of the rows
  int32 last_position;
  int32 segment;  // first segment that the rows see
  int32 segment_end;
};

// The measurement of one tile, which one planner CTA writes for the others
// (planner/tile_exchange.cuh).
struct alignas(16) TileMeasurement {
  int32 blocks;
  int32 segments;
  int32 first_segment;  // first segment that the rows see
  int32 first_position;
  int32 last_position;
  int32 unused[3];
};
static_assert(sizeof(TileMeasurement) == 32);

// The planner's table of tiles is in shared memory if a step has room for at most kSharedTiles
// tiles. Otherwise each planner CTA has a table in global memory, in PlanScratch. A tile takes
// kPlanTileBytes: its rows and keys, its cost and fixed splits, and prefix sums of both. One more
// entry contains the sums of all tiles.
inline constexpr int32 kSharedTiles = 1024;
inline constexpr int32 kPlanTileBytes = sizeof(TileRows) + sizeof(TileKeys) + 16;
constexpr int64 plan_table_bytes(int32 tiles) { return (int64{tiles} + 1) * kPlanTileBytes; }
struct PlanScratch {
  uint8* tables;  // null: the table is in shared memory
  // These are shared by all planner CTAs (planner/tile_exchange.cuh). They are null if a step never
  // has many tiles, or if there is one planner.
  TileMeasurement* measurements;
  uint32* counter;
  int32 max_tiles;
  int32 max_work_tiles;
};
static_assert(sizeof(PlanScratch) == 32);

// The threads of a planner CTA, and the tiles that a planner CTA measures without the others.
inline constexpr int32 kPlanThreads = 512;
inline constexpr int32 kTilesAtOnce = 64;

// Shared memory of the planner: one word a warp for the scan over the CTA, the sums over few tiles
// of each warp, and the table of tiles.
constexpr int32 kPlanWarps = kPlanThreads / 32;
constexpr int32 kPlanScanBytes = kPlanWarps * 4;
constexpr int32 kFewCostsBytes = (kTilesAtOnce + 1) * 4;
constexpr int32 kPlanTableAt = kPlanScanBytes + kPlanWarps * kFewCostsBytes;
constexpr int32 kPlanSharedBytes =
    kPlanTableAt + static_cast<int32>(plan_table_bytes(kSharedTiles));
static_assert(kPlanTableAt % 16 == 0);

// The plan of one attend kernel, which serves requests of min_rows to max_rows packed rows per KV
// head. The host fills it in. The planner writes the memory of `work`, which attend reads.
struct PlanPhase {
  WorkView work;
  PlanScratch scratch;
  int32 min_rows;
  int32 max_rows;
  Divisor tile_rows;
  Divisor block_keys;
  int32 min_split_blocks;  // least blocks of a KV split at a tile's ends
  int32 min_heads;         // least KV heads of a work tile
  int32 max_heads;         // greatest; both are powers of two that divide the KV heads
  int32 max_head_groups;   // KV heads / min_heads
  // 0: no fixed splits. Otherwise a tile is cut into KV splits of this many blocks, the last of
  // which may be shorter. Splits are longer where their number reaches its limit, which depends on
  // the tile's request alone.
  int32 fixed_split_blocks;
  int32 num_counters;
  int32 work_tile_cost;      // cost of a work tile beside its blocks (planner/policy.h)
  int32 allows_round_robin;  // not 0: whole units are assigned where the imbalance is small
  int32 sm_count;            // consecutive CTAs, up to this many, run on different SMs
  int32 has_queue;           // not 0: CTAs can take units from a queue
  int32 max_group_cost;      // greatest cost of a group of KV heads
  int32 short_share_cost;    // greatest cost of a short share
};
static_assert(sizeof(PlanPhase) == 48 + 32 + 80);

inline constexpr int kPlanPhases = 2;

// SharedCounts is in device memory and has what the share kernel has counted: requests and query
// tokens of the shared step, and the query tokens of the step that read shared segments.
struct SharedCounts {
  int32 requests;
  int32 tokens;
  int32 sharing_tokens;
};

// The fields that the kernel needs first come first: their line of the constant cache is loaded
// when the kernel begins.
struct PlanParams {
  int32 num_planners;  // CTAs per phase: each plans the whole phase and writes some work tiles
  int32 unused;
  StepInputs inputs;
  Divisor page_size;
  int32 also_unused;
  StepView step;
  PlanPhase phase[kPlanPhases];
  // Null unless the step is a shared one. Its requests have one segment each, which their query
  // tokens see as a whole. `inputs` then has the capacities, and these are the numbers.
  const SharedCounts* shared_counts;
  // [num_segments]: the number of each segment's first run among the runs of its request
  // (abi/page_mass.h). Only planners of kernels that measure page mass read it. Those of kernels of
  // attention states read the memory code of each segment instead (abi/states.h); null: all 0.
  const int32* first_runs;
};
static_assert(sizeof(PlanParams) == 8 + 96 + 16 + 24 + 2 * 160 + 16);

// Launch parameters of the planner where a step has a cascade (abi/cascade.h): it plans the step
// and its shared step, which has the first phase only. The shared step's CTAs come last.
struct CascadePlanParams {
  PlanParams step;
  PlanParams shared;
  int32 step_ctas;  // CTAs that plan the step
  int32 unused;
};

}  // namespace lazyrope
