// Chunked mask: a query at logical position p sees the keys of its own chunk of kChunk positions,
// from a multiple of kChunk to p.
#pragma once

#include "ops/mask/interval.cuh"

namespace lazyrope {

template <int kChunk>
struct Mask {
  using HidesFirstKeys = void;
  // A query that begins a chunk sees one key, and an earlier query may see more.
  static constexpr bool kRestarts = true;

  LAZYROPE_DEVICE static int32 first_key(int32 query) {
    const int32 remainder = query % kChunk;
    const int32 offset = remainder < 0 ? remainder + kChunk : remainder;
    return query < kFirstPosition + offset ? kFirstPosition : query - offset;
  }
  LAZYROPE_DEVICE static int32 last_key(int32 query) { return query; }
};

}  // namespace lazyrope
