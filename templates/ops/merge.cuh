// Results of rows: written to the output, kept as a part of a row's result, or merged from parts.
//
// A part is a row not yet divided by its sum, with the maximum (log2 units) and the sum. Parts i of a
// row combine to  sum_i 2^(max_i - max) row_i / sum_i 2^(max_i - max) sum_i  with max = max_i max_i:
// exact, whatever keys each part saw (attention over disjoint keys).
#pragma once

#include "abi/attend.h"
#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "ops/query_rows.cuh"
#include "ops/softmax.cuh"

namespace lazyrope {

struct RowStats {
  float maximum;
  float sum;
};

// Four consecutive columns of a row, and the row's stats.
struct RowPart {
  float value[4];
  RowStats stats;
};

LAZYROPE_DEVICE float inverse_or_zero(float sum) { return sum > 0.0f ? rcp_approx_ftz_f32(sum) : 0.0f; }

// Where the rows of an item lie in the output.
template <class Spec>
class OutputRows {
 public:
  LAZYROPE_DEVICE OutputRows(const AttendParams& params, ItemPtr item)
      : params_(params), rows_(item.rows()) {}

  // Natural logarithm of the sum of exponentials; -infinity for a row that saw no key.
  LAZYROPE_DEVICE void write_lse(int32 row, RowStats stats) const {
    const LseTensor& lse = params_.lse;
    if (lse.data == nullptr) return;
    constexpr float kLn2 = 0.693147180559945309f;
    const float value = stats.sum > 0.0f
                            ? (stats.maximum + lg2_approx_ftz_f32(stats.sum)) * kLn2
                            : -infinity_f32();
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
    const float scale = inverse_or_zero(part.stats.sum);
    st_global(reinterpret_cast<Word2*>(p),
              Word2{{Element::pack(part.value[0] * scale, part.value[1] * scale),
                     Element::pack(part.value[2] * scale, part.value[3] * scale)}});
    if (quad == 0) write_lse(row, part.stats);
  }

 private:
  const AttendParams& params_;
  ItemRows rows_;
};

// The parts of an item's rows in the step's workspace.
template <int kHeadDim>
class PartialRows {
 public:
  static constexpr int kBatch = 8;

  LAZYROPE_DEVICE PartialRows(const WorkView& work, ItemSplit split) : work_(work), split_(split) {}

  LAZYROPE_DEVICE float* values(int32 split, int32 row) const {
    return work_.partial_rows + part(split, row) * kHeadDim;
  }
  LAZYROPE_DEVICE RowStats* stats(int32 split, int32 row) const {
    return reinterpret_cast<RowStats*>(work_.partial_stats) + part(split, row);
  }

  LAZYROPE_DEVICE void write(int32 row, int32 quad, const RowPart& part) const {
    const float* v = part.value;
    st_global(reinterpret_cast<Chunk*>(values(split_.index, row)) + quad,
              Chunk{{float_as_bits(v[0]), float_as_bits(v[1]), float_as_bits(v[2]),
                     float_as_bits(v[3])}});
    if (quad == 0)
      st_global(reinterpret_cast<Word2*>(stats(split_.index, row)),
                Word2{{float_as_bits(part.stats.maximum), float_as_bits(part.stats.sum)}});
  }

  // As sources of a merge.
  LAZYROPE_DEVICE int32 count() const { return split_.count; }
  LAZYROPE_DEVICE RowStats load_stats(int32 split, int32 row) const {
    const Word2 w = ld_global_relaxed_gpu(reinterpret_cast<const Word2*>(stats(split, row)));
    return {bits_as_float(w.word[0]), bits_as_float(w.word[1])};
  }
  LAZYROPE_DEVICE Chunk load_values(int32 split, int32 row, int32 quad) const {
    return ld_global_relaxed_gpu(reinterpret_cast<const Chunk*>(values(split, row)) + quad);
  }

 private:
  LAZYROPE_DEVICE int64 part(int32 split, int32 row) const {
    return static_cast<int64>(split_.partial + split) * work_.partial_row_count + row;
  }

  const WorkView& work_;
  ItemSplit split_;
};

// The parts that the warps of a CTA leave in shared memory: rows of kHeadDim floats, padded so that the
// rows of a fragment fall into different banks.
template <int kHeadDim, int kRowCount, int kParts>
class SharedParts {
 public:
  static constexpr int kRows = kRowCount;
  static constexpr int kBatch = kParts;
  static constexpr int kRowBytes = (kHeadDim + 8) * 4;
  static constexpr int kStatsBytes = kParts * kRows * static_cast<int>(sizeof(RowStats));
  static constexpr int kBytes = kParts * kRows * kRowBytes + kStatsBytes;

  LAZYROPE_DEVICE explicit SharedParts(SharedPtr memory) : memory_(memory) {}

  LAZYROPE_DEVICE SharedPtr values(int32 part, int32 row) const {
    return memory_ + kStatsBytes + (part * kRows + row) * kRowBytes;
  }
  LAZYROPE_DEVICE SharedPtr stats(int32 part, int32 row) const {
    return memory_ + (part * kRows + row) * static_cast<int32>(sizeof(RowStats));
  }

  LAZYROPE_DEVICE int32 count() const { return kParts; }
  LAZYROPE_DEVICE RowStats load_stats(int32 part, int32 row) const {
    return ld_shared<RowStats>(stats(part, row));
  }
  LAZYROPE_DEVICE Chunk load_values(int32 part, int32 row, int32 quad) const {
    return ld_shared<Chunk>(values(part, row) + quad * 16);
  }

 private:
  SharedPtr memory_;
};

// Parts are loaded kBatch at a time: what a merge waits for is memory, one part after the other.
template <class Parts>
LAZYROPE_DEVICE RowPart merge_parts(const Parts& parts, int32 row, int32 quad) {
  constexpr int kBatch = Parts::kBatch;
  RowPart merged = {{}, {kNoMaximum, 0.0f}};
#pragma unroll 1
  for (int32 first = 0; first < parts.count(); first += kBatch) {
    RowStats stats[kBatch];
    Chunk values[kBatch];
    float maximum = merged.stats.maximum;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int32 part = smaller(first + i, parts.count() - 1);
      stats[i] = parts.load_stats(part, row);
      values[i] = parts.load_values(part, row, quad);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) maximum = max_f32(maximum, stats[i].maximum);
    const float kept = ex2_approx_ftz_f32(merged.stats.maximum - maximum);
    merged.stats = {maximum, merged.stats.sum * kept};
#pragma unroll
    for (int j = 0; j < 4; ++j) merged.value[j] *= kept;
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const float weight =
          first + i < parts.count() ? ex2_approx_ftz_f32(stats[i].maximum - maximum) : 0.0f;
      merged.stats.sum += stats[i].sum * weight;
#pragma unroll
      for (int j = 0; j < 4; ++j) merged.value[j] += bits_as_float(values[i].word[j]) * weight;
    }
  }
  return merged;
}

// All threads of the CTA: calls visit(row, quad) for every four columns of num_rows rows.
template <int kHeadDim, class Visit>
LAZYROPE_DEVICE void for_each_quad(int32 num_rows, const Visit& visit) {
  constexpr int32 kQuads = kHeadDim / 4;
#pragma unroll 1
  for (int32 i = thread_index(); i < num_rows * kQuads; i += block_threads())
    visit(i / kQuads, i % kQuads);
}

}  // namespace lazyrope
