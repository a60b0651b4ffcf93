// Full mask: every query sees every key.
#pragma once

#include "ops/mask/interval.cuh"

namespace lazyrope {

template <int... kNone>
struct Mask {
  LAZYROPE_DEVICE static int32 first_key(int32) { return kFirstPosition; }
  LAZYROPE_DEVICE static int32 last_key(int32) { return kLastPosition; }
};

}  // namespace lazyrope
