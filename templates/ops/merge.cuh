// Results of rows: written to the output, kept as a part of a row's result, or merged from parts.
//
// A part is a row not yet divided by its sum, with the maximum (log2 units) and the sum. Parts i of
// a row combine to  sum_i 2^(max_i - max) row_i / sum_i 2^(max_i - max) sum_i  with max = max_i
// max_i: exact, whatever keys each part saw (attention over disjoint keys).
#pragma once

#include "abi/attend.h"
#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "ops/pool_scales.cuh"
#include "ops/query_rows.cuh"
#include "ops/softmax.cuh"

namespace lazyrope {

struct alignas(8) RowStats {
  float maximum;
  float sum;
};

// Columns of a row, by fours, and the row's stats.
template <int kQuads>
struct RowQuads {
  float value[4 * kQuads];
  RowStats stats;
};
using RowPart = RowQuads<1>;

LAZYROPE_DEVICE float inverse_or_zero(float sum) {
  return sum == 0.0f ? 0.0f : rcp_approx_ftz_f32(sum);
}

// Where a row of an item's first KV head, or of one `head` after it, lies in the output.
template <class Spec>
class OutputRows {
 public:
  LAZYROPE_DEVICE OutputRows(const OutputTensor& out, const LseTensor& lse, ValueScales scales,
                             ItemRows rows)
      : out_(out), lse_(lse), scales_(scales), rows_(rows) {}

  // Quads that lie kApart quads behind one another.
  template <int kApart, int kQuads>
  LAZYROPE_DEVICE void write(int32 head, int32 row, int32 quad,
                             const RowQuads<kQuads>& part) const {
    write_values<kApart>(head, row, quad, part);
    if (quad == 0) write_lse(head, row, part.stats);
  }

  // The same in steps: columns, what they are multiplied by, where they are written.
  template <int kApart = 1, int kQuads>
  LAZYROPE_DEVICE void write_values(int32 head, int32 row, int32 quad,
                                    const RowQuads<kQuads>& part) const {
    using Element = typename Spec::Element;
    const float scale = scale_of(head, part.stats.sum);
    uint8* to = place_of(head, row) + quad * 8;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float* v = part.value + 4 * i;
      st_global(reinterpret_cast<Word2*>(to + i * kApart * 8),
                Word2{{Element::pack(v[0] * scale, v[1] * scale),
                       Element::pack(v[2] * scale, v[3] * scale)}});
    }
  }
  LAZYROPE_DEVICE float scale_of(int32 head, float sum) const {
    const float scale = inverse_or_zero(sum);
    if constexpr (Spec::Product::kScaled) return scale * scales_.of(rows_.kv_head + head);
    return scale;
  }
  LAZYROPE_DEVICE uint8* place_of(int32 head, int32 row) const {
    const QueryRow<Spec> to(rows_of_head(rows_, head), row);
    return static_cast<uint8*>(out_.data) + to.token * out_.token_stride +
           to.head * out_.head_stride;
  }

  // Natural logarithm of the sum of exponentials; -infinity for a row that saw no key.
  LAZYROPE_DEVICE void write_lse(int32 head, int32 row, RowStats stats) const {
    if (lse_.data == nullptr) return;
    const QueryRow<Spec> to(rows_of_head(rows_, head), row);
    constexpr float kLn2 = 0.693147180559945309f;
    const float value = stats.sum == 0.0f ? -infinity_f32()
                                          : (stats.maximum + lg2_approx_ftz_f32(stats.sum)) * kLn2;
    uint8* p = reinterpret_cast<uint8*>(lse_.data) + to.token * lse_.token_stride +
               to.head * lse_.head_stride;
    st_global(reinterpret_cast<float*>(p), value);
  }

 private:
  const OutputTensor& out_;
  const LseTensor& lse_;
  ValueScales scales_;
  ItemRows rows_;
};

// A part of a row as it lies in global and in shared memory.
template <int kHeadDim>
struct PartRecord {
  static constexpr int kStats = kHeadDim * 4;
  static constexpr int kBytes = part_record_bytes(kHeadDim);
  static constexpr int kQuads = kHeadDim / 4;
};

LAZYROPE_DEVICE RowPart row_part(const Chunk& values, RowStats stats) {
  RowPart part;
  part.stats = stats;
#pragma unroll
  for (int j = 0; j < 4; ++j) part.value[j] = bits_as_float(values.word[j]);
  return part;
}

// One warp leaves the 16 rows of an accumulator tile as records, from `records` on.
template <class Product, int kHeadDim, int kColumnTiles, class Softmax>
LAZYROPE_DEVICE void leave_rows(SharedPtr records, const float (&rows)[kColumnTiles][4],
                                const Softmax& softmax, int row_tile) {
  using Record = PartRecord<kHeadDim>;
  const int32 lane = lane_index();
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const SharedPtr record = records + row_of(lane, 2 * h) * Record::kBytes;
    if (lane % 4 == 0)
      st_shared(record + Record::kStats,
                RowStats{softmax.maximum[row_tile][h], softmax.sum[row_tile][h]});
    Product::leave_row(record, rows, lane, h);
  }
}

template <int kHeadDim>
LAZYROPE_DEVICE RowPart left_part(SharedPtr record, int32 quad) {
  return row_part(ld_shared<Chunk>(record + quad * 16),
                  ld_shared<RowStats>(record + PartRecord<kHeadDim>::kStats));
}

// Those parts of a row that exist become one with what is merged already. The maximum of others is
// kNoMaximum.
template <int kCount, int kQuads>
LAZYROPE_DEVICE void merge_into(RowQuads<kQuads>& merged, const RowQuads<kQuads> (&parts)[kCount],
                                const bool (&exists)[kCount]) {
  float maximum = merged.stats.maximum;
#pragma unroll
  for (int i = 0; i < kCount; ++i) maximum = max_f32(maximum, parts[i].stats.maximum);
  const float kept = ex2_approx_ftz_f32(merged.stats.maximum - maximum);
  merged.stats = {maximum, merged.stats.sum * kept};
#pragma unroll
  for (float& value : merged.value) value *= kept;
#pragma unroll
  for (int i = 0; i < kCount; ++i) {
    if (!exists[i]) continue;
    const float weight = ex2_approx_ftz_f32(parts[i].stats.maximum - maximum);
    merged.stats.sum += parts[i].stats.sum * weight;
#pragma unroll
    for (int j = 0; j < 4 * kQuads; ++j) merged.value[j] += parts[i].value[j] * weight;
  }
}

template <int kQuads = 1>
LAZYROPE_DEVICE RowQuads<kQuads> no_part() {
  return {{}, {kNoMaximum, 0.0f}};
}

// Merges the parts that lanes l, l + apart, l + 2 apart ... of the warp have, for l < apart, a
// power of two of kLeast at the least. All lanes take part, in exchanges beyond `apart` too, of
// which they keep nothing: a branch around them takes longer.
template <int kLeast>
LAZYROPE_DEVICE void merge_lanes(RowPart& part, int32 apart) {
  if (apart == kWarpThreads) return;
  constexpr int32 kMost = kWarpThreads / 2;
  float maximum = part.stats.maximum;
#pragma unroll
  for (int32 mask = kMost; mask >= kLeast; mask /= 2) {
    const float other = shfl_sync_bfly(maximum, mask);
    maximum = max_f32(maximum, mask >= apart ? other : maximum);
  }
  const float weight = ex2_approx_ftz_f32(part.stats.maximum - maximum);
  float sums[5] = {part.stats.sum, part.value[0], part.value[1], part.value[2], part.value[3]};
#pragma unroll
  for (float& sum : sums) sum *= weight;
#pragma unroll
  for (int32 mask = kMost; mask >= kLeast; mask /= 2)
#pragma unroll
    for (float& sum : sums) {
      const float other = shfl_sync_bfly(sum, mask);
      sum += mask >= apart ? other : 0.0f;
    }
  part = {{sums[1], sums[2], sums[3], sums[4]}, {maximum, sums[0]}};
}

// Merges read(0) to read(num_parts - 1), of which there are at most kMost.
template <int kMost, class Read>
LAZYROPE_DEVICE RowPart merge_parts(int32 num_parts, const Read& read) {
  RowPart parts[kMost];
  bool exists[kMost];
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    exists[i] = i < num_parts;
    parts[i] = exists[i] ? read(i) : no_part();
  }
  RowPart merged = no_part();
  merge_into(merged, parts, exists);
  return merged;
}

}  // namespace lazyrope
