// What follows from a mask. A mask (one file beside this one: Mask, a template of its row's
// parameters) says which logical positions a query sees: those from first_key(query) to
// last_key(query), neither of which decreases as the query moves on.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

inline constexpr int32 kFirstPosition = -2147483647 - 1;
inline constexpr int32 kLastPosition = 2147483647;

struct PositionRange {
  int32 first;
  int32 last;
};

// Whether all queries see all keys.
template <class Mask>
LAZYROPE_DEVICE bool all_visible(PositionRange queries, int32 first_key, int32 last_key) {
  return Mask::first_key(queries.last) <= first_key && last_key <= Mask::last_key(queries.first);
}

// Index, counted from the key at logical position `origin`, of the first key that `query` sees, and
// of the first after those; within [begin, end]. Distances may exceed int32, but not uint32.
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
