// The rows of a shared step's work tiles, whose results go to slots, and the combining of all results
// of a query row (abi/cascade.h).
//
// A row's results are written in slices of columns, by one warp each. The warp counts its slice in
// the row's counter when it has written it. The warp that counts the last slice of the last result
// reads all results and writes the row's output. The counter is then 0 again.
#pragma once

#include "isa/sync.cuh"
#include "ops/lanes.cuh"
#include "ops/output_rows.cuh"

namespace lazyrope {

template <class Spec, int32 kSlices>
class SharedRows {
  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int32 kQuads = kHeadDim / 4;
  static constexpr int32 kAtOnce = 4;  // results whose loads are in flight together

 public:
  LAZYROPE_DEVICE SharedRows(const OutputTensor& out, const LseTensor& lse, ValueScales scales,
                             const ResultSlots<true>& slots, WorkTileRows rows)
      : out_(out), lse_(lse), scales_(scales), slots_(slots), rows_(rows) {}

  // write() and write_pairs() write one of the results, as OutputRows and PartialRows do. A work
  // tile of the shared step has one KV head.
  template <int kStride, int kWritten>
  LAZYROPE_DEVICE void write(int32, int32 row, int32 quad, const RowQuads<kWritten>& result) const {
    write_slot_quads<kHeadDim, kStride>(slot_row(row), quad, result);
  }
  LAZYROPE_DEVICE void write_pairs(int32 row, int32 lane,
                                   const RowQuads<kHeadDim / 16>& pairs) const {
    write_slot_pairs<kHeadDim>(slot_row(row), lane * 2, pairs);
  }

  // The lane counts a slice of a row, if it has one. All lanes of the warp take part, after they have
  // synchronized with those that wrote the slices. They combine the rows that are complete.
  LAZYROPE_DEVICE void count_slice(bool has_one, int32 row) const {
    uint32 complete = vote_sync_ballot(has_one && is_last_slice(row));
#pragma unroll 1
    for (; complete != 0; complete &= complete - 1)
      combine(shfl_sync_idx(row, lowest_one(complete)));
  }

 private:
  LAZYROPE_DEVICE SharedToken token_of(const QueryRow<Spec>& of) const {
    return ld_global_nc(slots_.cascade.tokens + of.token);
  }
  LAZYROPE_DEVICE uint8* slot_row(int32 row) const {
    const QueryRow<Spec> of(rows_, row);
    return slots_.template row<kHeadDim>(token_of(of).slot, of.head);
  }

  LAZYROPE_DEVICE bool is_last_slice(int32 row) const {
    const QueryRow<Spec> of(rows_, row);
    const auto slots = ld_global_nc(slots_.cascade.slots + token_of(of).query_token);
    const uint32 all = static_cast<uint32>(slots.count * kSlices);
    uint8* counter = slots_.template row<kHeadDim>(slots.own, of.head) + kHeadDim * 4 + 8;
    return atom_acq_rel_gpu_inc(reinterpret_cast<uint32*>(counter), all - 1) + 1 == all;
  }

  // Combines the results of a row and writes its output. The own result is complete when the kernel
  // that wrote it is.
  LAZYROPE_DEVICE void combine(int32 row) const {
    const QueryRow<Spec> of(rows_, row);
    const int32 token = token_of(of).query_token;
    const auto slots = ld_global_nc(slots_.cascade.slots + token);
    const OutputRows<Spec> output(out_, lse_, scales_, slots_,
                                  {token, row_in_group(of), rows_.kv_head, 1});
    griddepcontrol_wait();
    bar_warp_sync();
#pragma unroll 1
    for (int32 quad = lane_index(); quad < kQuads; quad += kWarpThreads)
      output.template write<1>(0, 0, quad, combined(slots, of.head, quad));
  }
  LAZYROPE_DEVICE int32 row_in_group(const QueryRow<Spec>& of) const {
    return static_cast<int32>(of.head) - rows_.kv_head * Spec::kGroupSize;
  }

  // Result 0 is the own one.
  LAZYROPE_DEVICE RowQuad combined(const SharedSlots& slots, int64 head, int32 quad) const {
    RowQuad result = empty_partial();
#pragma unroll 1
    for (int32 first = 0; first <= slots.count; first += kAtOnce) {
      RowQuad partials[kAtOnce];
      bool exists[kAtOnce];
#pragma unroll
      for (int32 i = 0; i < kAtOnce; ++i) {
        const int32 index = first + i;
        exists[i] = index <= slots.count;
        const int32 slot = index == 0 ? slots.own : slots.first + (index - 1) * slots.stride;
        partials[i] = exists[i] ? load(slot, head, quad) : empty_partial();
      }
      combine_into(result, partials, exists);
    }
    return result;
  }
  LAZYROPE_DEVICE RowQuad load(int32 slot, int64 head, int32 quad) const {
    const uint8* row = slots_.template row<kHeadDim>(slot, head);
    const auto stats = ld_relaxed_gpu(reinterpret_cast<const Word2*>(row + kHeadDim * 4));
    return make_row_quad(ld_relaxed_gpu(reinterpret_cast<const Chunk*>(row) + quad),
                         {bits_as_float(stats.word[0]), bits_as_float(stats.word[1])});
  }

  const OutputTensor& out_;
  const LseTensor& lse_;
  ValueScales scales_;
  ResultSlots<true> slots_;
  WorkTileRows rows_;
};

// What a kernel writes as the result of rows that have seen all their keys: their output, or one of
// their results. kSlices is the number of slices of a row.
template <class Spec, int32 kSlices, bool kIsShared = Spec::kIsShared>
struct ResultRows {
  using Type = OutputRows<Spec>;
};
template <class Spec, int32 kSlices>
struct ResultRows<Spec, kSlices, true> {
  using Type = SharedRows<Spec, kSlices>;
};

}  // namespace lazyrope
