// Lanes give each other values, so that each has together what lay in several.
#pragma once

#include "isa/sync.cuh"

namespace lazyrope {

// Of lanes `apart` (a power of two) from each other, the lower one's second value and the upper
// one's first change places. All lanes of the warp take part.
LAZYROPE_DEVICE void exchange(float& first, float& second, int32 apart) {
  const bool is_upper = (lane_index() & apart) != 0;
  const float other = shfl_sync_bfly(is_upper ? first : second, apart);
  first = is_upper ? other : first;
  second = is_upper ? second : other;
}

}  // namespace lazyrope
