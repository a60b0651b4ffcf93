// Sliding window: a query at logical position p sees the keys at positions p - kWindow + 1 to p.
#pragma once

#include "ops/mask/interval.cuh"

namespace lazyrope {

template <int kWindow>
struct Mask {
  using HidesFirstKeys = void;

  LAZYROPE_DEVICE static int32 first_key(int32 query) {
    return query < kFirstPosition + kWindow ? kFirstPosition : query - kWindow + 1;
  }
  LAZYROPE_DEVICE static int32 last_key(int32 query) { return query; }
};

}  // namespace lazyrope
