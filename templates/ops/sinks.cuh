// Attention sinks: one more logit per query head, which has no value. A row's sum becomes sum_j
// exp(s_j) + exp(sink).
#pragma once

#include "ops/query_rows.cuh"
#include "ops/softmax.cuh"

namespace lazyrope {

// Adds the sinks of a warp's rows to the softmax state. The warp's first row is row `first_row` of
// the num_rows rows that each KV head of the work tile has. The row tiles are divided equally among
// kHeads KV heads. A sink counts once in a row, so only a tile's first KV split calls this
// function.
template <class Spec, int kHeads = 1, int kRowTiles, class Lanes, bool kScoresAreLogits,
          class Range>
LAZYROPE_DEVICE void add_sinks(SoftmaxState<kRowTiles, Lanes, kScoresAreLogits, Range>& softmax,
                               const float* sinks, WorkTileRows rows, int32 first_row,
                               int32 num_rows) {
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
