// Attention sinks: a logit of each query head that takes part in the softmax and has no value.
#pragma once

#include "ops/query_rows.cuh"
#include "ops/softmax.cuh"

namespace lazyrope {

// Of a warp's rows, the first of which is row `first_row` of the work tile's `num_rows`. kHeads KV
// heads have equal parts of them. Once a row: by the first part of a split tile.
template <class Spec, int kHeads = 1, int kRowTiles, class Lanes, bool kPlain>
LAZYROPE_DEVICE void add_sinks(SoftmaxState<kRowTiles, Lanes, kPlain>& softmax, const float* sinks,
                               WorkTileRows rows, int32 first_row, int32 num_rows) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      constexpr int kHeadTiles = kRowTiles / kHeads;
      const int head = m / kHeadTiles;
      const int32 row = first_row + Lanes::row(m % kHeadTiles, h);
      const QueryRow<Spec> from(rows_of_head(rows, head), smaller(row, num_rows - 1));
      softmax.add_sink(m, h, ld_global_nc(sinks + from.head) * kLog2e);
    }
}

}  // namespace lazyrope
