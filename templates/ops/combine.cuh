// The partial results of rows, and how they are combined.
//
// A partial result is a row that is not yet divided by its sum, with its maximum (log2 units) and
// its sum. The partial results of a row, of KV splits i, are combined to
//   sum_i 2^(max_i - max) row_i / sum_i 2^(max_i - max) sum_i,   max = max over i of max_i.
// This is exact, because the KV splits have disjoint keys.
#pragma once

#include "abi/attend.h"
#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "ops/query_rows.cuh"
#include "ops/softmax.cuh"

namespace lazyrope {

struct alignas(8) RowStats {
  float maximum;
  float sum;
};

// kQuads quads of four consecutive columns of a row, and the row's statistics. There may be other
// columns between the quads.
template <int kQuads>
struct RowQuads {
  float value[4 * kQuads];
  RowStats stats;
};
using RowQuad = RowQuads<1>;

// A row's partial result in shared memory: kHeadDim floats, then RowStats.
template <int kHeadDim>
struct PartialRecord {
  static constexpr int kStats = kHeadDim * 4;
  static constexpr int kBytes = partial_record_bytes(kHeadDim);
  static constexpr int kQuads = kHeadDim / 4;
};

LAZYROPE_DEVICE RowQuad make_row_quad(const Chunk& values, RowStats stats) {
  RowQuad partial;
  partial.stats = stats;
#pragma unroll
  for (int j = 0; j < 4; ++j) partial.value[j] = bits_as_float(values.word[j]);
  return partial;
}

// Stores the 16 rows of a warp's accumulator tile (tile/warp_product.cuh) as consecutive records
// from `records` on. All lanes take part; the first of a row's four lanes stores the statistics.
template <class Product, int kHeadDim, int kColumnTiles, class Softmax>
LAZYROPE_DEVICE void store_partial(SharedPtr records, const float (&rows)[kColumnTiles][4],
                                   const Softmax& softmax, int row_tile) {
  using Record = PartialRecord<kHeadDim>;
  const int32 lane = lane_index();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const SharedPtr record = records + row_of(lane, 2 * h) * Record::kBytes;
    if (lane % 4 == 0)
      st_shared(record + Record::kStats,
                RowStats{softmax.maximum[row_tile][h], softmax.sum[row_tile][h]});
    Product::store_partial_row(record, rows, lane, h);
  }
}

template <int kHeadDim>
LAZYROPE_DEVICE RowQuad load_partial(SharedPtr record, int32 quad) {
  return make_row_quad(ld_shared<Chunk>(record + quad * 16),
                       ld_shared<RowStats>(record + PartialRecord<kHeadDim>::kStats));
}

// Adds a lane's partial results of a row to `combined`. A partial result that does not exist must
// have the maximum kNoMaximum.
template <int kCount, int kQuads>
LAZYROPE_DEVICE void combine_into(RowQuads<kQuads>& combined,
                                  const RowQuads<kQuads> (&partials)[kCount],
                                  const bool (&exists)[kCount]) {
  float maximum = combined.stats.maximum;
#pragma unroll
  for (int i = 0; i < kCount; ++i) maximum = max_f32(maximum, partials[i].stats.maximum);
  const float scale = ex2_approx_ftz_f32(combined.stats.maximum - maximum);
  combined.stats = {maximum, combined.stats.sum * scale};
#pragma unroll
  for (float& value : combined.value) value *= scale;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (!exists[i]) continue;
    const float weight = ex2_approx_ftz_f32(partials[i].stats.maximum - maximum);
    combined.stats.sum += partials[i].stats.sum * weight;
#pragma unroll
    for (int j = 0; j < 4 * kQuads; ++j) combined.value[j] += partials[i].value[j] * weight;
  }
}

template <int kQuads = 1>
LAZYROPE_DEVICE RowQuads<kQuads> empty_partial() {
  return {{}, {kNoMaximum, 0.0f}};
}

// Combines the partial results of lanes l, l + stride, l + 2 stride, ... for each l < stride.
// `stride` is a power of two, at least kMin. All lanes take part in the exchanges between kMin and
// `stride`, too, and ignore what they get: a branch around them would take longer.
template <int kMin>
LAZYROPE_DEVICE void combine_lanes(RowQuad& partial, int32 stride) {
  if (stride == kWarpThreads) return;
  constexpr int32 kMax = kWarpThreads / 2;
  float maximum = partial.stats.maximum;
#pragma unroll
  for (int32 mask = kMax; mask >= kMin; mask /= 2) {
    const float other = shfl_sync_bfly(maximum, mask);
    maximum = max_f32(maximum, mask >= stride ? other : maximum);
  }
  const float weight = ex2_approx_ftz_f32(partial.stats.maximum - maximum);
  float sums[5] = {partial.stats.sum, partial.value[0], partial.value[1], partial.value[2],
                   partial.value[3]};
#pragma unroll
  for (float& sum : sums) sum *= weight;
#pragma unroll
  for (int32 mask = kMax; mask >= kMin; mask /= 2)
#pragma unroll
    for (float& sum : sums) {
      const float other = shfl_sync_bfly(sum, mask);
      sum += mask >= stride ? other : 0.0f;
    }
  partial = {{sums[1], sums[2], sums[3], sums[4]}, {maximum, sums[0]}};
}

// Combines the partial results read(0) to read(num_partials - 1). num_partials is at most kMax.
template <int kMax, class Read>
LAZYROPE_DEVICE RowQuad combine_partials(int32 num_partials, const Read& read) {
  RowQuad partials[kMax];
  bool exists[kMax];
#pragma unroll
  for (int i = 0; i < kMax; ++i) {
    exists[i] = i < num_partials;
    partials[i] = exists[i] ? read(i) : empty_partial();
  }
  RowQuad combined = empty_partial();
  combine_into(combined, partials, exists);
  return combined;
}

}  // namespace lazyrope
