// Launch parameters of the share kernel (planner/share.cuh). runtime/step fills them in.
#pragma once

#include "abi/cascade.h"
#include "abi/plan.h"

namespace lazyrope {

// Segments that the share kernel writes, for the planner: arrays of int32 in device memory.
struct SegmentArrays {
  int32* base;
  int32* start;
  int32* length;
  int32* lead;
  int32* first_page;
};

// The shared step as the planner reads it, in device memory. The share kernel writes it. Request g
// has segment g.
struct SharedStepArrays {
  int32* q_indptr;         // [max_segments + 1]
  int32* segment_indptr;   // [max_segments + 1]
  int32* q_position;       // [max_tokens]: distance of the query from the document's token 0
  SegmentArrays segments;  // [max_segments]
  SharedCounts* counts;
};

// The segments that the step's requests keep, which replace the caller's. At most two are left of a
// caller's segment: what is before and after its shared tokens.
inline constexpr int32 kMaxKeptSegments = 2;
struct OwnSegmentArrays {
  int32* segment_indptr;   // [requests + 1]
  SegmentArrays segments;  // [2 * segments]
  int32* mask_base;        // [2 * segments]; written if the caller has one
};

// Memory of the share kernel for each of the caller's segments. It is in shared memory if an update
// has at most kShareSegments segments, otherwise in global memory.
inline constexpr int32 kShareSegments = 2048;
inline constexpr int32 kShareChunk = 64;  // the least size of a table; a warp sorts so many at once
inline constexpr int32 kShareWordsPerSegment = 12;
inline constexpr int32 kShareIndexBits = 20;     // a step with a cascade has at most 2^20 segments
inline constexpr int32 kMaxReaderTokens = 1024;  // query tokens of a request that shares
constexpr int64 share_table_bytes(int32 segments) {
  return (int64{segments} + 1) * kShareWordsPerSegment * 4;
}

struct ShareParams {
  StepInputs inputs;
  Divisor page_size;
  int32 max_request_tokens;  // requests with more tokens share nothing
  SharedStepArrays shared;
  SharedToken* tokens;    // [max_tokens]
  SharedSlots* slots;     // [query tokens]
  int32* sharing_tokens;  // the query tokens that have slots
  OwnSegmentArrays own;
  uint8* table;          // null: the step has no room for more than kShareSegments segments
  int32 table_segments;  // the segments that the table has room for: a power of two
  int32 max_segments;    // the most segments and tokens of the shared step
  int32 max_tokens;
  int32 tile_tokens;       // query tokens of a tile of the shared step's kernel
  int32 min_length;        // the fewest tokens of a shared segment
  int32 min_saved_tokens;  // tokens that the step must save to share anything
};
static_assert(sizeof(ShareParams) == 96 + 16 + 72 + 24 + 56 + 8 + 24);

inline constexpr int32 kShareThreads = 512;
// A family's saving counts as no more tokens. So the sum of all threads fits an int32.
inline constexpr int32 kMaxSavedTokens = 0x7fffffff / kShareThreads;
constexpr int32 kShareScanBytes = kShareThreads / 32 * 4;
constexpr int32 kShareSharedBytes =
    kShareScanBytes + static_cast<int32>(share_table_bytes(kShareSegments));

}  // namespace lazyrope
