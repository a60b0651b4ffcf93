// Launch parameters of append and of its planner.
#pragma once

#include "abi/attend.h"

namespace lazyrope {

// Where one appended token goes.
struct AppendRecord {
  int32 page;   // page of the pool
  int32 slot;   // slot in that page; -1: nothing is written
  int32 index;  // the token's index in its document: the angle of the rotation
  int32 unused;
};
static_assert(sizeof(AppendRecord) == 16);

// What is needed first lies in a line of the constant cache that is there as the kernel begins;
// likewise what follows. Other lines are waited for.
struct PlanAppendParams {
  int32 num_requests;
  int32 page_size;
  int32 capacity;
  int32 unused;
  const int32* indptr;      // [requests + 1]: rows of k and v of each request
  const int32* first;       // [requests]: document index of its first row
  const int32* first_page;  // [requests]: index into pages
  const int32* lead;        // [requests]: slot of the first row, counted from that page's slot 0;
                            // null: all 0
  const int32* pages;
  AppendRecord* records;  // [capacity.tokens]
};
static_assert(sizeof(PlanAppendParams) == 64);

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
