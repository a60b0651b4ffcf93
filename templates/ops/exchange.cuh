// Exchanges of registers between the lanes of a warp, by shuffles. All lanes take part.
#pragma once

#include "isa/sync.cuh"

namespace lazyrope {

// Exchanges the second value of lane l and the first value of lane l + distance. `distance` is a
// power of two that is not set in l.
template <class T>
LAZYROPE_DEVICE void exchange(T& first, T& second, int32 distance) {
  const bool is_upper = (lane_index() & distance) != 0;
  const T other = shfl_sync_bfly(is_upper ? first : second, distance);
  first = is_upper ? other : first;
  second = is_upper ? second : other;
}

// Transposes the 4 x 4 values of four lanes, from each of which the next is `distance` lanes away.
// Value i of the j-th lane becomes value j of the i-th lane.
template <class T>
LAZYROPE_DEVICE void transpose(T (&values)[4], int32 distance) {
  exchange(values[0], values[1], distance);
  exchange(values[2], values[3], distance);
  exchange(values[0], values[2], 2 * distance);
  exchange(values[1], values[3], 2 * distance);
}

}  // namespace lazyrope
