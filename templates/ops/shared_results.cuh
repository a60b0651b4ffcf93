// The results of query rows that several kernels compute together (abi/cascade.h). Each writes its
// rows to slots.
#pragma once

#include "abi/cascade.h"
#include "ops/combine.cuh"

namespace lazyrope {

// The slots of a launch. This is empty in kernels that have no cascade.
template <bool kExist>
struct ResultSlots {
  LAZYROPE_DEVICE ResultSlots() {}
  LAZYROPE_DEVICE explicit ResultSlots(const AttendParams&) {}
};
template <>
struct ResultSlots<true> {
  CascadeView cascade;
  uint32 slot_bytes;

  LAZYROPE_DEVICE ResultSlots(const CascadeView& cascade, uint32 slot_bytes)
      : cascade(cascade), slot_bytes(slot_bytes) {}
  LAZYROPE_DEVICE explicit ResultSlots(const AttendParams& params)
      : ResultSlots(params.cascade, params.shared_slot_bytes) {}

  // Returns the row of a query head in a slot.
  template <int kHeadDim>
  LAZYROPE_DEVICE uint8* row(int32 slot, int64 head) const {
    return cascade.results + static_cast<int64>(slot) * slot_bytes +
           head * shared_row_bytes(kHeadDim);
  }
  // Returns the row for the result of a query token's own segments, or null if it has no slots.
  template <int kHeadDim>
  LAZYROPE_DEVICE uint8* own_row(int64 token, int64 head) const {
    if (cascade.slots == nullptr) return nullptr;
    const auto slots = ld_global_nc(cascade.slots + token);
    return slots.count == 0 ? nullptr : row<kHeadDim>(slots.own, head);
  }
};
template <class Spec>
using SlotsOf = ResultSlots<Spec::kIsShared || Spec::kDefers>;

template <int kHeadDim>
LAZYROPE_DEVICE void write_slot_stats(uint8* row, RowStats stats) {
  st_global(reinterpret_cast<RowStats*>(row + kHeadDim * 4), stats);
}

// Writes kQuads quads of a row, kStride quads from one to the next. The lane with quad 0 also
// writes the statistics.
template <int kHeadDim, int kStride, int kQuads>
LAZYROPE_DEVICE void write_slot_quads(uint8* row, int32 quad, const RowQuads<kQuads>& result) {
#pragma unroll
  for (int i = 0; i < kQuads; ++i) {
    const float* v = result.value + 4 * i;
    st_global(reinterpret_cast<Chunk*>(row) + quad + i * kStride,
              Chunk{{float_as_bits(v[0]), float_as_bits(v[1]), float_as_bits(v[2]),
                     float_as_bits(v[3])}});
  }
  if (quad == 0) write_slot_stats<kHeadDim>(row, result.stats);
}

// Writes two of every eight columns of a row, from `column` on, as a lane of an accumulator tile
// has them. The lane with column 0 also writes the statistics.
template <int kHeadDim, int kOctets, int kQuads>
LAZYROPE_DEVICE void write_slot_pairs(uint8* row, int32 column, const RowQuads<kQuads>& result) {
  static_assert(kOctets <= 2 * kQuads);
#pragma unroll
  for (int32 n = 0; n < kOctets; ++n)
    st_global(reinterpret_cast<Word2*>(row + column * 4) + 4 * n,
              Word2{{float_as_bits(result.value[2 * n]), float_as_bits(result.value[2 * n + 1])}});
  if (column == 0) write_slot_stats<kHeadDim>(row, result.stats);
}

// Writes rows of a shared step's work tiles, as OutputRows writes those of other steps.
template <class Spec>
class SharedRows {
  static constexpr int kHeadDim = Spec::kHeadDim;

 public:
  LAZYROPE_DEVICE SharedRows(const ResultSlots<true>& slots, WorkTileRows rows)
      : slots_(slots), rows_(rows) {}

  template <int kStride, int kQuads>
  LAZYROPE_DEVICE void write(int32 head, int32 row, int32 quad,
                             const RowQuads<kQuads>& result) const {
    write_slot_quads<kHeadDim, kStride>(slot_row(head, row), quad, result);
  }
  LAZYROPE_DEVICE void write_pairs(int32 row, int32 lane,
                                   const RowQuads<(kHeadDim + 15) / 16>& pairs) const {
    write_slot_pairs<kHeadDim, kHeadDim / 8>(slot_row(0, row), lane * 2, pairs);
  }

 private:
  LAZYROPE_DEVICE uint8* slot_row(int32 head, int32 row) const {
    const QueryRow<Spec> of(rows_of_head(rows_, head), row);
    return slots_.template row<kHeadDim>(ld_global_nc(&slots_.cascade.tokens[of.token].slot),
                                         of.head);
  }

  ResultSlots<true> slots_;
  WorkTileRows rows_;
};

}  // namespace lazyrope
