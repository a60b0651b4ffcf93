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

// Four consecutive columns of a row, and the row's stats.
struct RowPart {
  float value[4];
  RowStats stats;
};

LAZYROPE_DEVICE float inverse_or_zero(float sum) {
  return sum == 0.0f ? 0.0f : rcp_approx_ftz_f32(sum);
}

// Where a row of an item's first KV head, or of one `head` after it, lies in the output.
template <class Spec>
class OutputRows {
 public:
  LAZYROPE_DEVICE OutputRows(const AttendParams& params, ItemRows rows)
      : params_(params), rows_(rows) {}

  LAZYROPE_DEVICE void write(int32 head, int32 row, int32 quad, const RowPart& part) const {
    using Element = typename Spec::Element;
    const OutputTensor& out = params_.out;
    const ItemRows rows = rows_of_head(rows_, head);
    const QueryRow<Spec> to(rows, row);
    uint8* p = static_cast<uint8*>(out.data) + to.token * out.token_stride +
               to.head * out.head_stride + quad * 8;
    float scale = inverse_or_zero(part.stats.sum);
    if constexpr (Spec::Product::kScaled) scale *= value_scale(params_.pool, rows.kv_head);
    st_global(reinterpret_cast<Word2*>(p),
              Word2{{Element::pack(part.value[0] * scale, part.value[1] * scale),
                     Element::pack(part.value[2] * scale, part.value[3] * scale)}});
    if (quad == 0) write_lse(to, part.stats);
  }

 private:
  // Natural logarithm of the sum of exponentials; -infinity for a row that saw no key.
  LAZYROPE_DEVICE void write_lse(const QueryRow<Spec>& to, RowStats stats) const {
    const LseTensor& lse = params_.lse;
    if (lse.data == nullptr) return;
    constexpr float kLn2 = 0.693147180559945309f;
    const float value = stats.sum == 0.0f ? -infinity_f32()
                                          : (stats.maximum + lg2_approx_ftz_f32(stats.sum)) * kLn2;
    uint8* p = reinterpret_cast<uint8*>(lse.data) + to.token * lse.token_stride +
               to.head * lse.head_stride;
    st_global(reinterpret_cast<float*>(p), value);
  }

  const AttendParams& params_;
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

// Where the parts of an item's tile lie in the step's workspace.
template <int kHeadDim>
class PartialRows {
  using Record = PartRecord<kHeadDim>;

 public:
  LAZYROPE_DEVICE PartialRows(const WorkView& work, ItemSplit split) : work_(work), split_(split) {}

  // The CTA's own part.
  LAZYROPE_DEVICE void write(int32 row, int32 quad, const RowPart& part) const {
    uint8* to = record(split_.index, row);
    const float* v = part.value;
    st_global(reinterpret_cast<Chunk*>(to) + quad,
              Chunk{{float_as_bits(v[0]), float_as_bits(v[1]), float_as_bits(v[2]),
                     float_as_bits(v[3])}});
    if (quad == 0) st_global(reinterpret_cast<RowStats*>(to + Record::kStats), part.stats);
  }

  LAZYROPE_DEVICE RowPart read(int32 part, int32 row, int32 quad) const {
    const uint8* from = record(part, row);
    return row_part(ld_global(reinterpret_cast<const Chunk*>(from) + quad),
                    ld_global(reinterpret_cast<const RowStats*>(from + Record::kStats)));
  }

 private:
  LAZYROPE_DEVICE uint8* record(int32 part, int32 row) const {
    const int64 index = static_cast<int64>(split_.partial + part) * work_.partial_row_count + row;
    return work_.partials + index * Record::kBytes;
  }

  const WorkView& work_;
  ItemSplit split_;
};

// A row's two parts become one.
LAZYROPE_DEVICE RowPart merge_two(const RowPart& a, const RowPart& b) {
  RowPart merged{};
  merged.stats.maximum = max_f32(a.stats.maximum, b.stats.maximum);
  const float weight_a = ex2_approx_ftz_f32(a.stats.maximum - merged.stats.maximum);
  const float weight_b = ex2_approx_ftz_f32(b.stats.maximum - merged.stats.maximum);
  merged.stats.sum = a.stats.sum * weight_a + b.stats.sum * weight_b;
#pragma unroll
  for (int j = 0; j < 4; ++j) merged.value[j] = a.value[j] * weight_a + b.value[j] * weight_b;
  return merged;
}

// Merges the parts of `lanes` neighbouring lanes, a power of two; all lanes of the warp.
LAZYROPE_DEVICE RowPart merge_lanes(RowPart part, int32 lanes) {
#pragma unroll 1
  for (int32 mask = lanes / 2; mask > 0; mask /= 2) {
    RowPart other{};
#pragma unroll
    for (int j = 0; j < 4; ++j) other.value[j] = shfl_sync_bfly(part.value[j], mask);
    other.stats.maximum = shfl_sync_bfly(part.stats.maximum, mask);
    other.stats.sum = shfl_sync_bfly(part.stats.sum, mask);
    part = merge_two(part, other);
  }
  return part;
}

// Merges read(0) to read(num_parts - 1), kBatch of which are under way at once.
template <int kBatch, class Read>
LAZYROPE_DEVICE RowPart merge_parts(int32 num_parts, const Read& read) {
  RowPart merged = {{}, {kNoMaximum, 0.0f}};
#pragma unroll 1
  for (int32 first = 0; first < num_parts; first += kBatch) {
    RowPart part[kBatch];
    float maximum = merged.stats.maximum;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      part[i] = read(smaller(first + i, num_parts - 1));
      maximum = max_f32(maximum, part[i].stats.maximum);
    }
    const float kept = ex2_approx_ftz_f32(merged.stats.maximum - maximum);
    merged.stats = {maximum, merged.stats.sum * kept};
#pragma unroll
    for (int j = 0; j < 4; ++j) merged.value[j] *= kept;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const bool exists = first + i < num_parts;
      const float weight = exists ? ex2_approx_ftz_f32(part[i].stats.maximum - maximum) : 0.0f;
      merged.stats.sum += part[i].stats.sum * weight;
#pragma unroll
      for (int j = 0; j < 4; ++j) merged.value[j] += part[i].value[j] * weight;
    }
  }
  return merged;
}

}  // namespace lazyrope
