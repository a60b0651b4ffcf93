// Exchanges of registers between the lanes of a warp, by shuffles. All lanes take part.
#pragma once

#include "isa/sync.cuh"

namespace lazyrope {

// Exchanges the second value of a lane and the first value of the lane `apart` above it. `apart` is
// a power of two.
template <class T>
LAZYROPE_DEVICE void exchange(T& first, T& second, int32 apart) {
  const bool is_upper = (lane_index() & apart) != 0;
  const T other = shfl_sync_bfly(is_upper ? first : second, apart);
  first = is_upper ? other : first;
  second = is_upper ? second : other;
}

// Transposes the 4 x 4 values of four lanes that are `apart` lanes from each other: value i of lane
// j becomes value j of lane i.
template <class T>
LAZYROPE_DEVICE void transpose(T (&values)[4], int32 apart) {
  exchange(values[0], values[1], apart);
  exchange(values[2], values[3], apart);
  exchange(values[0], values[2], 2 * apart);
  exchange(values[1], values[3], 2 * apart);
}

}  // namespace lazyrope
