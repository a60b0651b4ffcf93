// The output of rows. Rows that other kernels compute, too, go to slots instead.
#pragma once

#include "ops/compile_time.cuh"
#include "ops/pool_scales.cuh"
#include "ops/shared_results.cuh"
#include "ops/states.cuh"

namespace lazyrope {

LAZYROPE_DEVICE float inverse_or_zero(float sum) {
  return sum == 0.0f ? 0.0f : rcp_approx_ftz_f32(sum);
}

// The parameters that results have besides the tensors of outputs: slots in kernels of a cascade,
// and memories in those of attention states. No spec has both.
template <class Spec>
using ResultExtras =
    typename SelectType<(Spec::kMemories > 0), EntryStates<Spec>, SlotsOf<Spec>>::Type;

// Writes rows of a work tile to the tensors of outputs and of LSEs. `head` is the index of a KV
// head in the work tile, `row` that of a row in the head.
template <class Spec>
class OutputRows {
 public:
  LAZYROPE_DEVICE OutputRows(const OutputTensor& out, const LseTensor& lse, ValueScales scales,
                             ResultExtras<Spec> extras, WorkTileRows rows)
      : out_(out), lse_(lse), scales_(scales), extras_(extras), rows_(rows) {}

  // Adds a row's best entry of one memory to quads of the row, which write() then gets.
  template <int kStride, int kQuads>
  LAZYROPE_DEVICE void add_entry(int32 head, int32 quad, RowQuads<kQuads>& row,
                                 const BestEntry& best) const {
    extras_.template add<kStride>(row, rows_.kv_head + head, quad, best);
  }
  // Adds the best entries of all memories.
  template <int kStride, int kQuads>
  LAZYROPE_DEVICE void add_entries(int32 head, int32 quad, RowQuads<kQuads>& row,
                                   const RowEntries<Spec::kMemories>& best) const {
    extras_.template add_all<kStride>(row, rows_.kv_head + head, quad, best);
  }

  // Divides kQuads quads by the row's sum and writes them as quads quad, quad + kStride, ... of a
  // row. The thread with quad 0 writes the LSE, too.
  template <int kStride, int kQuads>
  LAZYROPE_DEVICE void write(int32 head, int32 row, int32 quad,
                             const RowQuads<kQuads>& partial) const {
    if constexpr (Spec::kDefers) {
      if (uint8* slot = slot_row(head, row); slot != nullptr)
        return write_slot_quads<Spec::kHeadDim, kStride>(slot, quad, partial);
    }
    write_values<kStride>(head, row, quad, partial);
    if (quad == 0) write_lse(head, row, partial.stats);
  }

  // Returns the row's slot, or null if the row has only one result.
  LAZYROPE_DEVICE uint8* slot_row(int32 head, int32 row) const {
    const QueryRow<Spec> of(rows_of_head(rows_, head), row);
    return extras_.template own_row<Spec::kHeadDim>(of.token, of.head);
  }

  // write_values(), scale_of(), row_address() and write_lse() are steps of write(), which callers
  // may also use alone.
  template <int kStride = 1, int kQuads>
  LAZYROPE_DEVICE void write_values(int32 head, int32 row, int32 quad,
                                    const RowQuads<kQuads>& partial) const {
    using Element = typename Spec::Element;
    const float scale = scale_of(head, partial.stats.sum);
    uint8* to = row_address(head, row) + quad * 8;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) {
      const float* v = partial.value + 4 * i;
      st_global(reinterpret_cast<Word2*>(to + i * kStride * 8),
                Word2{{Element::pack(v[0] * scale, v[1] * scale),
                       Element::pack(v[2] * scale, v[3] * scale)}});
    }
  }
  LAZYROPE_DEVICE float scale_of(int32 head, float sum) const {
    const float scale = inverse_or_zero(sum);
    if constexpr (Spec::Product::kScaled) return scale * scales_.of(rows_.kv_head + head);
    return scale;
  }
  LAZYROPE_DEVICE uint8* row_address(int32 head, int32 row) const {
    const QueryRow<Spec> to(rows_of_head(rows_, head), row);
    return static_cast<uint8*>(out_.data) + to.token * out_.token_stride +
           to.head * out_.head_stride;
  }

  // Writes ln(sum_j exp(s_j)) of a row, or -infinity if the row saw no key.
  LAZYROPE_DEVICE void write_lse(int32 head, int32 row, RowStats stats) const {
    if (lse_.data == nullptr) return;
    const QueryRow<Spec> to(rows_of_head(rows_, head), row);
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
  [[no_unique_address]] ResultExtras<Spec> extras_;
  WorkTileRows rows_;
};

template <class Spec, bool kIsShared>
struct SelectResultRows {
  using Type = OutputRows<Spec>;
  LAZYROPE_DEVICE static Type make(const OutputTensor& out, const LseTensor& lse,
                                   ValueScales scales, ResultExtras<Spec> extras,
                                   WorkTileRows rows) {
    return Type(out, lse, scales, extras, rows);
  }
};
template <class Spec>
struct SelectResultRows<Spec, true> {
  using Type = SharedRows<Spec>;
  LAZYROPE_DEVICE static Type make(const OutputTensor&, const LseTensor&, ValueScales,
                                   SlotsOf<Spec> slots, WorkTileRows rows) {
    return Type(slots, rows);
  }
};
// ResultRows is the class by which a kernel writes rows that have seen all their keys.
template <class Spec>
using ResultRows = SelectResultRows<Spec, Spec::kIsShared>;

}  // namespace lazyrope
