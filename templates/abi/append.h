// Launch parameters of the append kernel and of its planner, plan_append. runtime/step and
// runtime/attention fill them in.
#pragma once

#include "abi/attend.h"

namespace lazyrope {

// The destination of one appended token, and its index in the document. plan_append writes it;
// append and reposition read it.
struct AppendRecord {
  int32 page;   // page of the pool
  int32 slot;   // slot in that page; -1: nothing is written
  int32 index;  // the token's index in its document: the position of the rotation
  int32 unused;
};
static_assert(sizeof(AppendRecord) == 16);

// plan_append reads the caller's arrays on the device, either those of spans or those of slots, and
// writes the records. Here and in AppendParams, the fields that a kernel needs first come first:
// their line of the constant cache is loaded when the kernel begins, but the kernel waits for other
// lines.
struct PlanAppendParams {
  int32 num_requests;
  int32 page_size;
  int32 capacity;
  int32 num_slots;
  const int32* indptr;      // [num_requests + 1]: rows of k and v of each request; null: slots are
                            // given, and no array of spans is read
  const int32* first;       // [num_requests]: document index of its first row
  const int32* first_page;  // [num_requests]: index into pages
  const int32* lead;        // [num_requests]: slot of the first row, counted from slot 0 of that
                            // page; null: all 0
  const int32* pages;
  AppendRecord* records;      // [capacity]: written
  const int64* slot_mapping;  // [num_slots]: page * page_size + slot of each row; below 0: none
  const int64* index;         // [num_slots]: document index of each row
};
static_assert(sizeof(PlanAppendParams) == 80);

struct AppendParams {
  const AppendRecord* records;
  int32 num_tokens;
  int32 num_kv_heads;
  TokenTensor k;  // [tokens, kv_heads, head_dim]
  TokenTensor v;
  KvPool pool;  // written
};
static_assert(sizeof(AppendParams) == 16 + 24 + 24 + 56);

}  // namespace lazyrope
