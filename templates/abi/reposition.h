// Launch parameters of reposition.
#pragma once

#include "abi/append.h"

namespace lazyrope {

struct RepositionParams {
  const AppendRecord* source;  // [num_tokens]: where each token lies
  const AppendRecord* target;  // [num_tokens]: where it goes
  int32 num_tokens;
  int32 num_kv_heads;
  KvPool pool;  // read and written
};
static_assert(sizeof(RepositionParams) == 24 + 56);

}  // namespace lazyrope
