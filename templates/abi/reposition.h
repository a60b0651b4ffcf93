// Launch parameters of the reposition kernel. runtime/attention fills them in.
#pragma once

#include "abi/append.h"

namespace lazyrope {

struct RepositionParams {
  const AppendRecord* source;  // [num_tokens]: page, slot and index that each token is copied from
  const AppendRecord* target;  // [num_tokens]: page, slot and index that it is copied to
  int32 num_tokens;
  int32 num_kv_heads;
  KvPool pool;  // read and written
};
static_assert(sizeof(RepositionParams) == 24 + 56);

}  // namespace lazyrope
