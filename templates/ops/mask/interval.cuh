// The interval of keys that a mask lets a query see. Each file of this folder but this one defines
// a Mask, with the parameters of its row in the registry. A query sees the logical positions from
// first_key(query) to last_key(query). Neither decreases with the query's position. A Mask has
// kRestarts if the number of keys that a query sees may fall from one position to the next. It has
// the type HidesFirstKeys if queries do not see all keys before them.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

inline constexpr int32 kFirstPosition = -2147483647 - 1;
inline constexpr int32 kLastPosition = 2147483647;

struct PositionRange {
  int32 first;
  int32 last;
};

// Tells whether all queries see all keys.
template <class Mask>
LAZYROPE_DEVICE bool all_visible(PositionRange queries, int32 first_key, int32 last_key) {
  return Mask::first_key(queries.last) <= first_key && last_key <= Mask::last_key(queries.first);
}

// visible_begin() and visible_end() return the first key that `query` sees and one past the last.
// Both count from the key at logical position `origin` and are within [begin, end]. Distances may
// exceed an int32, but not a uint32.
template <class Mask>
LAZYROPE_DEVICE int32 visible_begin(int32 query, int32 origin, int32 begin, int32 end) {
  const int32 first = Mask::first_key(query);
  if (first <= origin) return begin;
  const uint32 index = static_cast<uint32>(first) - static_cast<uint32>(origin);
  return larger(static_cast<int32>(smaller(index, static_cast<uint32>(end))), begin);
}

template <class Mask>
LAZYROPE_DEVICE int32 visible_end(int32 query, int32 origin, int32 end) {
  const int32 last = Mask::last_key(query);
  if (last < origin || end <= 0) return 0;
  const uint32 index = static_cast<uint32>(last) - static_cast<uint32>(origin);
  return static_cast<int32>(smaller(index, static_cast<uint32>(end) - 1)) + 1;
}

}  // namespace lazyrope
