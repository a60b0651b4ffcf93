// The position-free cascade in device memory. Tokens that several segments read from the same slots
// of the same pages become one request of the step's shared step, which reads these tokens once.
// The share kernel makes the shared step (planner/share.cuh), and an attend kernel of its own
// computes it.
//
// A query token that reads shared segments has several results for each of its heads: one for each
// shared segment, and one for all other tokens of its request. Each is a row in a slot, and the
// kernel combine_shared combines them (ops/combine_shared.cuh).
#pragma once

#include "abi/attend.h"
#include "abi/plan.h"

namespace lazyrope {

// A token of the shared step: a query token, once for each shared segment that it reads.
struct alignas(8) SharedToken {
  int32 query_token;  // row of q
  int32 slot;         // slot of its result
};

// The slots of a query token: `count` results of shared segments, in slots first, first + stride,
// ... and the result of all other segments. Count 0: the token has no slots.
struct alignas(16) SharedSlots {
  int32 first;
  int32 count;
  int32 stride;
  int32 own;
};

// Returns the bytes of a row in a slot: head_dim floats that are not divided by their sum, then the
// row's maximum (log2 units) and sum.
constexpr int32 shared_row_bytes(int32 head_dim) { return head_dim * 4 + 16; }

// Launch parameters of combine_shared.
struct CombineSharedParams {
  OutputTensor out;
  LseTensor lse;
  KvPool pool;  // only the scales of values are read
  CascadeView cascade;
  const SharedCounts* counts;
  const int32* sharing_tokens;  // [counts->sharing_tokens]: the query tokens that have slots
  uint32 slot_bytes;            // bytes of a slot: one row for each query head
  int32 num_kv_heads;
};
static_assert(sizeof(CombineSharedParams) == 24 + 24 + 56 + 24 + 16 + 8);

inline constexpr int32 kCombineSharedThreads = 512;
inline constexpr int32 kCombineSharedCtasPerSm = 2;

}  // namespace lazyrope
