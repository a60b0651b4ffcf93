// Results of rows: written to the output, kept as a part of a row's result, or merged from parts.
//
// A part is a row not yet divided by its sum, with the maximum (log2 units) and the sum. Parts i of
// a row combine to  sum_i 2^(max_i - max) row_i / sum_i 2^(max_i - max) sum_i  with max = max_i
// max_i: exact, whatever keys each part saw (attention over disjoint keys).
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

LAZYROPE_DEVICE float inverse_or_zero(float sum) {
  return sum > 0.0f ? rcp_approx_ftz_f32(sum) : 0.0f;
}

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
    const float value =
        stats.sum > 0.0f ? (stats.maximum + lg2_approx_ftz_f32(stats.sum)) * kLn2 : -infinity_f32();
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

// A part of a row as it lies in memory: kHeadDim floats, then the stats, padded so that the rows of
// a fragment fall into different banks of shared memory. Global and shared memory hold the same
// records.
template <int kHeadDim>
struct PartRecord {
  static constexpr int kStats = kHeadDim * 4;
  static constexpr int kMerged = kStats + static_cast<int>(sizeof(RowStats));  // see weigh_parts
  static constexpr int kBytes = (kHeadDim + 8) * 4;
  static constexpr int kQuads = kHeadDim / 4;
};

// Where the parts of an item's tile lie in the step's workspace.
template <int kHeadDim>
class PartialRows {
  using Record = PartRecord<kHeadDim>;

 public:
  LAZYROPE_DEVICE PartialRows(const WorkView& work, ItemSplit split) : work_(work), split_(split) {}

  LAZYROPE_DEVICE uint8* record(int32 part, int32 row) const {
    const int64 index = static_cast<int64>(split_.partial + part) * work_.partial_row_count + row;
    return work_.partials + index * Record::kBytes;
  }

  LAZYROPE_DEVICE void write(int32 row, int32 quad, const RowPart& part) const {
    uint8* to = record(split_.index, row);
    const float* v = part.value;
    st_global(reinterpret_cast<Chunk*>(to) + quad,
              Chunk{{float_as_bits(v[0]), float_as_bits(v[1]), float_as_bits(v[2]),
                     float_as_bits(v[3])}});
    if (quad == 0)
      st_global(reinterpret_cast<Word2*>(to + Record::kStats),
                Word2{{float_as_bits(part.stats.maximum), float_as_bits(part.stats.sum)}});
  }

  // All threads of the CTA: copies parts first_part .. + num_parts - 1 of rows first_row .. +
  // num_rows - 1 to shared memory, part by part, all of it under way at once.
  LAZYROPE_DEVICE void copy(SharedPtr to, int32 first_part, int32 num_parts, int32 first_row,
                            int32 num_rows) const {
    const int32 bytes = num_rows * Record::kBytes;  // of a part: its rows lie together
    bar_sync();                                     // what lies there is still being read
#pragma unroll 1
    for (int32 part = 0; part < num_parts; ++part) {
      const uint8* from = record(first_part + part, first_row);
#pragma unroll 1
      for (int32 i = thread_index() * 16; i < bytes; i += block_threads() * 16)
        cp_async_cg_16(to + i, from + i, 16);
      to = to + bytes;
    }
    cp_async_commit_group();
    cp_async_wait_group<0>();
    bar_sync();
  }

 private:
  const WorkView& work_;
  ItemSplit split_;
};

LAZYROPE_DEVICE RowPart merge(const RowPart& a, const RowPart& b) {
  const float maximum = max_f32(a.stats.maximum, b.stats.maximum);
  const float weight_a = ex2_approx_ftz_f32(a.stats.maximum - maximum);
  const float weight_b = ex2_approx_ftz_f32(b.stats.maximum - maximum);
  RowPart merged;
  merged.stats = {maximum, a.stats.sum * weight_a + b.stats.sum * weight_b};
#pragma unroll
  for (int j = 0; j < 4; ++j) merged.value[j] = a.value[j] * weight_a + b.value[j] * weight_b;
  return merged;
}

LAZYROPE_DEVICE float warp_max(float value) {
#pragma unroll
  for (int mask = kWarpThreads / 2; mask > 0; mask /= 2)
    value = max_f32(value, shfl_sync_bfly(value, mask));
  return value;
}

LAZYROPE_DEVICE float warp_sum(float value) {
#pragma unroll
  for (int mask = kWarpThreads / 2; mask > 0; mask /= 2) value += shfl_sync_bfly(value, mask);
  return value;
}

// One warp a row: puts each part's weight in the place of its maximum, and the stats of all parts
// together behind the stats of part 0.
template <int kHeadDim>
LAZYROPE_DEVICE void weigh_parts(SharedPtr records, int32 num_parts, int32 num_rows) {
  using Record = PartRecord<kHeadDim>;
  const int32 stride = num_rows * Record::kBytes;
#pragma unroll 1
  for (int32 row = warp_index(); row < num_rows; row += block_threads() / kWarpThreads) {
    const SharedPtr stats = records + row * Record::kBytes + Record::kStats;
    RowStats merged = {kNoMaximum, 0.0f};
#pragma unroll 1
    for (int32 part = lane_index(); part < num_parts; part += kWarpThreads)
      merged.maximum = max_f32(merged.maximum, ld_shared<RowStats>(stats + part * stride).maximum);
    merged.maximum = warp_max(merged.maximum);
#pragma unroll 1
    for (int32 part = lane_index(); part < num_parts; part += kWarpThreads) {
      const RowStats of_part = ld_shared<RowStats>(stats + part * stride);
      const float weight = ex2_approx_ftz_f32(of_part.maximum - merged.maximum);
      merged.sum += of_part.sum * weight;
      st_shared(stats + part * stride, weight);
    }
    merged.sum = warp_sum(merged.sum);
    if (lane_index() == 0) st_shared(stats + (Record::kMerged - Record::kStats), merged);
  }
}

// All threads of the CTA: merges num_parts parts of num_rows rows that lie in shared memory, part
// by part, and calls visit(row, quad, part) for every four columns.
template <int kHeadDim, class Visit>
LAZYROPE_DEVICE void merge_rows(SharedPtr records, int32 num_parts, int32 num_rows,
                                const Visit& visit) {
  using Record = PartRecord<kHeadDim>;
  const int32 stride = num_rows * Record::kBytes;
  const bool single = num_parts == 1;
  if (!single) {
    weigh_parts<kHeadDim>(records, num_parts, num_rows);
    bar_sync();
  }
#pragma unroll 1
  for (int32 i = thread_index(); i < num_rows * Record::kQuads; i += block_threads()) {
    const int32 row = i / Record::kQuads;
    const int32 quad = i % Record::kQuads;
    const SharedPtr record = records + row * Record::kBytes;
    RowPart merged = {{},
                      ld_shared<RowStats>(record + (single ? Record::kStats : Record::kMerged))};
#pragma unroll 4
    for (int32 part = 0; part < num_parts; ++part) {
      const Chunk values = ld_shared<Chunk>(record + part * stride + quad * 16);
      const float weight =
          single ? 1.0f : ld_shared<float>(record + part * stride + Record::kStats);
#pragma unroll
      for (int j = 0; j < 4; ++j) merged.value[j] += weight * bits_as_float(values.word[j]);
    }
    visit(row, quad, merged);
  }
}

}  // namespace lazyrope
