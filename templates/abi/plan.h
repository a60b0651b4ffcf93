// Launch parameters of the planner, which turns the caller's metadata into a step.
#pragma once

#include "abi/step.h"

namespace lazyrope {

// The caller's arrays, int32 on the device; README.md gives their meaning.
struct StepInputs {
  const int32* q_indptr;        // [requests + 1]
  const int32* q_position;      // [query tokens]
  const int32* segment_indptr;  // [requests + 1]
  const int32* base;            // [segments]
  const int32* start;
  const int32* length;
  const int32* first_page;
  const int32* lead;  // may be null: all zero
  const int32* pages;
  int32 num_requests;
  int32 num_segments;
  int32 num_tokens;
  int32 page_size;
};
static_assert(sizeof(StepInputs) == 88);

// The planner's notes from one stage to the next; [max_tiles] but where said.
struct PlanScratch {
  int32* tile_begin;  // [capacity.requests + 1]: first tile of each request
  int32* tile_request;
  int32* tile_first_position;
  int32* tile_last_position;
  int32* tile_blocks;
  int64* cost_begin;  // [max_tiles + 1]: cost of all tiles before, for one KV head
  int32 max_tiles;
  int32 max_items;
};
static_assert(sizeof(PlanScratch) == 56);

// One attend kernel's share: requests with min_rows to max_rows packed rows per KV head.
struct PlanPhase {
  WorkView work;
  PlanScratch scratch;
  int32 min_rows;
  int32 max_rows;
  int32 tile_rows;
  int32 block_keys;
  int32 min_split_blocks;  // at a tile's ends no part is shorter
  int32 max_heads;         // KV heads that an item may have, a power of two
};
static_assert(sizeof(PlanPhase) == 32 + 56 + 24);

inline constexpr int kPlanPhases = 2;

struct PlanParams {
  StepInputs inputs;
  StepView step;
  PlanPhase phase[kPlanPhases];  // one CTA each
  int32 num_kv_heads;
  int32 unused;
};
static_assert(sizeof(PlanParams) == 88 + 24 + 2 * 112 + 8);

}  // namespace lazyrope
