// Launch parameters of the attend kernel. runtime/attention fills them in; all strides are in
// bytes.
#pragma once

#include "abi/states.h"
#include "abi/step.h"

namespace lazyrope {

// A tensor [tokens, heads, head_dim] of the caller, the last dimension contiguous.
struct TokenTensor {
  const void* data;
  int64 token_stride;
  int64 head_stride;
};

// The caller's pool: pages of keys and of values. The strides, which both share, tell NHD from HND.
// Attend reads it; append and reposition write it.
struct KvPool {
  void* keys;
  void* values;
  // Stored keys and values are multiplied by these: one factor for all heads (scale stride 0) or
  // one per KV head (scale stride 4). Null means 1.
  const float* key_scales;
  const float* value_scales;
  uint32 page_stride;
  uint32 slot_stride;
  uint32 head_stride;
  uint32 key_scale_stride;
  uint32 value_scale_stride;
  uint32 unused;
};

// The output tensor [tokens, heads, head_dim]. Attend writes it.
struct OutputTensor {
  void* data;
  int64 token_stride;
  int64 head_stride;
};

// The logarithm of the sum of exponentials, [tokens, heads]: fp32, natural logarithm. `data` may be
// null.
struct LseTensor {
  float* data;
  int64 token_stride;
  int64 head_stride;
};

struct SharedToken;
struct SharedSlots;

// The cascade of a launch (abi/cascade.h). Null pointers: the step shares nothing.
struct CascadeView {
  const SharedToken* tokens;  // [shared tokens]
  const SharedSlots* slots;   // [query tokens]
  uint8* results;             // [slots][query heads] rows of shared_row_bytes(head_dim)
};
static_assert(sizeof(CascadeView) == 24);

// The terms of a query token's rows (abi/page_mass.h). Row h, that of query head h, has num_runs
// terms from term first + h * num_runs on. num_runs 0: the token's rows have none.
struct alignas(8) PageMassRow {
  int32 first;
  int32 num_runs;
};

// Where a launch stores the terms of page masses. Null pointers: the call does not ask for them.
struct PageMassView {
  const PageMassRow* rows;  // [query tokens]
  uint32* terms;
};
static_assert(sizeof(PageMassView) == 16);

struct AttendParams {
  TokenTensor q;
  KvPool pool;
  OutputTensor out;
  LseTensor lse;
  const float* sinks;  // [heads], natural logarithms; null where the kernel takes none
  StepView step;
  WorkView work;
  float scale_log2;          // softmax scale times log2(e)
  uint32 shared_slot_bytes;  // bytes of a slot of cascade.results
  CascadeView cascade;
  union {  // a spec has at most one of page_mass and states
    PageMassView page_mass;
    EntryLse entry_lse;
  };
};
static_assert(sizeof(AttendParams) == 24 + 56 + 24 + 24 + 8 + 24 + 48 + 8 + 24 + 16);

}  // namespace lazyrope
