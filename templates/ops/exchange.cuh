// Lanes give each other values, so that each has together what lay in several.
#pragma once

#include "isa/sync.cuh"

namespace lazyrope {

// Of lanes `apart` (a power of two) from each other, the lower one's second value and the upper
// one's first change places. All lanes of the warp take part.
template <class T>
LAZYROPE_DEVICE void exchange(T& first, T& second, int32 apart) {
  const bool is_upper = (lane_index() & apart) != 0;
  const T other = shfl_sync_bfly(is_upper ? first : second, apart);
  first = is_upper ? other : first;
  second = is_upper ? second : other;
}

// Four lanes, `apart` from each other: value i of lane j becomes value j of lane i.
template <class T>
LAZYROPE_DEVICE void transpose(T (&values)[4], int32 apart) {
  exchange(values[0], values[1], apart);
  exchange(values[2], values[3], apart);
  exchange(values[0], values[2], 2 * apart);
  exchange(values[1], values[3], 2 * apart);
}

}  // namespace lazyrope
