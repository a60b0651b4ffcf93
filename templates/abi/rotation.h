// Launch parameters of plan_rotation, plan_packing and rotate_keys, which fill a step's scratch
// with rotated keys. runtime/step fills them in, and runtime/attention the caller's pool.
//
// The scratch has pages of one run, kRunSlots slots. With plan_rotation, which serves raw keys, a
// segment takes consecutive pages, and its tokens have the same slots in them as in the runs of the
// pool. With plan_packing, which serves packed_prefill, all tokens follow each other.
#pragma once

#include "abi/attend.h"
#include "abi/plan.h"

namespace lazyrope {

// The threads of a CTA of each kernel, and the CTAs of rotate_keys that an SM has registers for.
inline constexpr int kPlanRotationThreads = 256;
inline constexpr int kRotateKeysThreads = 256;
inline constexpr int kRotateKeysCtasPerSm = 3;

// Shared memory of plan_rotation and plan_packing: one word a warp for the scan over the CTA, and
// one a thread.
inline constexpr int kPlanRotationSharedBytes =
    (kPlanRotationThreads / 32 + kPlanRotationThreads) * 4;

// The most runs of a scratch. The sums of plan_rotation then fit int32. plan_packing adds up tokens
// of as many segments as a CTA has threads, each of at most the slots of the scratch and one more.
inline constexpr int32 kMaxScratchRuns = 1 << 22;
inline constexpr int32 kMaxPackedRuns = 1 << 18;
inline constexpr int64 kMostPackedSlots = int64{kMaxPackedRuns} * kRunSlots + 1;
static_assert((kPlanRotationThreads + 1) * kMostPackedSlots < int64{1} << 31);

// A run of slots of the pool, which rotate_keys copies to one page of the scratch. plan_rotation
// writes it.
struct RotationRun {
  int32 page;   // page of the pool
  int32 slot;   // first slot of the run in that page
  int32 index;  // document index of a token in that slot; may be below 0 if `begin` is above 0
  int16 begin;  // slots of the run that have tokens of the segment: begin <= slot < end
  int16 end;
};
static_assert(sizeof(RotationRun) == 16);

// The token of one slot of the scratch, which rotate_keys copies there. plan_packing writes it.
struct PackedSlot {
  int32 page;     // page of the pool
  int32 slot;     // slot in that page
  int32 base;     // the key is rotated by this position
  int32 is_used;  // 0: the slot of the scratch has no token
};
static_assert(sizeof(PackedSlot) == 16);

// The runs of a step's scratch, in device memory.
struct RotationHeader {
  int32 num_runs;  // 0: the scratch does not suffice, and no request uses it
  int32 unused[3];
};
static_assert(sizeof(RotationHeader) == 16);

// The arrays from which the planner plans attention over the scratch. plan_rotation or plan_packing
// writes them, so that they have a place for each element of the caller's arrays. The last three
// are null with plan_rotation: the caller's hold.
struct RotatedInputs {
  int32* q_indptr;    // [num_requests + 1]: the caller's, or all 0 if the scratch does not suffice
  int32* first_page;  // [num_segments]: first page of the scratch
  int32* lead;        // [num_segments]
  int32* length;      // [num_segments]: 0 for the segments of decode requests
  int32* pages;       // [max_runs]: page i is page i of the scratch
  int32* base;        // [num_segments], like the next two arrays
  int32* start;
  int32* mask_base;
};
static_assert(sizeof(RotatedInputs) == 64);

struct PlanRotationParams {
  StepInputs inputs;  // the caller's
  Divisor page_size;
  int32 group_size;
  int32 min_rows;  // least packed rows of a request whose keys are rotated
  int32 max_runs;
  int32 num_unrotated_ctas;
  int32 block_rows;  // packed rows of a query tile, and keys of a KV block, over the scratch
  int32 block_keys;
  int32 widened_block_tokens;  // kPackedWidenedBlockTokens for a pool of 8 bits, else 0
  // The first work tiles of the kernel that attends to the pool instead: [num_unrotated_ctas]. They
  // are emptied if attention reads the scratch.
  WorkTile* unrotated_work_tiles;
  RotatedInputs rotated;
  RotationRun* runs;  // [max_runs], with plan_rotation
  PackedSlot* slots;  // [max_runs * kRunSlots], with plan_packing
  RotationHeader* header;
};
static_assert(sizeof(PlanRotationParams) == 96 + 12 + 28 + 8 + 64 + 24);

struct RotateKeysParams {
  const RotationHeader* header;
  const RotationRun* runs;  // written by plan_rotation, or null
  const PackedSlot* slots;  // written by plan_packing, or null
  int32 num_kv_heads;
  int32 unused;
  KvPool pool;     // read
  KvPool scratch;  // written
};
static_assert(sizeof(RotateKeysParams) == 32 + 2 * 56);

}  // namespace lazyrope
