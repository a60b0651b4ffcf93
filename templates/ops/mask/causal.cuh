// Causal mask: a query at logical position p sees the keys at positions up to p.
#pragma once

#include "ops/mask/interval.cuh"

namespace lazyrope {

template <int... kNone>
struct Mask {
  LAZYROPE_DEVICE static int32 first_key(int32) { return kFirstPosition; }
  LAZYROPE_DEVICE static int32 last_key(int32 query) { return query; }
};

}  // namespace lazyrope
