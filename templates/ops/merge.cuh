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

// Where the rows of an item lie in the output.
template <class Spec>
class OutputRows {
 public:
  LAZYROPE_DEVICE OutputRows(const AttendParams& params, ItemPtr item)
      : params_(params), rows_(item.rows()) {
    if constexpr (Spec::Product::kScaled) value_scale_ = value_scale(params.pool, rows_.kv_head);
  }

  // Natural logarithm of the sum of exponentials; -infinity for a row that saw no key.
  LAZYROPE_DEVICE void write_lse(int32 row, RowStats stats) const {
    const LseTensor& lse = params_.lse;
    if (lse.data == nullptr) return;
    constexpr float kLn2 = 0.693147180559945309f;
    const float value = stats.sum == 0.0f ? -infinity_f32()
                                          : (stats.maximum + lg2_approx_ftz_f32(stats.sum)) * kLn2;
    const QueryRow<Spec> to(rows_, row);
    uint8* p = reinterpret_cast<uint8*>(lse.data) + to.token * lse.token_stride +
               to.head * lse.head_stride;
    st_global(reinterpret_cast<float*>(p), value);
  }

  LAZYROPE_DEVICE void write(int32 row, int32 quad, const RowPart& part) const {
    using Element = typename Spec::Element;
    const OutputTensor& out = params_.out;
    const QueryRow<Spec> to(rows_, row);
    uint8* p = static_cast<uint8*>(out.data) + to.token * out.token_stride +
               to.head * out.head_stride + quad * 8;
    float scale = inverse_or_zero(part.stats.sum);
    if constexpr (Spec::Product::kScaled) scale *= value_scale_;
    st_global(reinterpret_cast<Word2*>(p),
              Word2{{Element::pack(part.value[0] * scale, part.value[1] * scale),
                     Element::pack(part.value[2] * scale, part.value[3] * scale)}});
    if (quad == 0) write_lse(row, part.stats);
  }

 private:
  const AttendParams& params_;
  ItemRows rows_;
  float value_scale_;  // where the pool is scaled
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
