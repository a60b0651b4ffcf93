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

LAZYROPE_DEVICE int32 clamp_index(int64 index, int32 begin, int32 end) {
  return static_cast<int32>(
      larger(smaller(index, static_cast<int64>(end)), static_cast<int64>(begin)));
}

// Index, counted from the key at logical position `origin`, of the first key that `query` sees, and
// of the first after those; within [begin, end].
template <class Mask>
LAZYROPE_DEVICE int32 visible_begin(int32 query, int32 origin, int32 begin, int32 end) {
  return clamp_index(static_cast<int64>(Mask::first_key(query)) - origin, begin, end);
}

template <class Mask>
LAZYROPE_DEVICE int32 visible_end(int32 query, int32 origin, int32 end) {
  return clamp_index(static_cast<int64>(Mask::last_key(query)) - origin + 1, 0, end);
}

}  // namespace lazyrope
