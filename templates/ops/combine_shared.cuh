// Combines the results of query rows that have several: one for each shared segment, and one for
// all other segments of the request (abi/cascade.h).
#pragma once

#include "ops/output_rows.cuh"

namespace lazyrope {

// A warp combines a row, a lane one quad of columns at a time. All warps of the grid stride over
// the heads of the sharing tokens.
template <class Spec>
class SharedCombiner {
  static constexpr int32 kQuads = Spec::kHeadDim / 4;
  static constexpr int32 kAtOnce = 4;  // results whose loads are in flight together

 public:
  LAZYROPE_DEVICE explicit SharedCombiner(const CombineSharedParams& params)
      : params_(params), slots_(params.cascade, params.slot_bytes) {}

  LAZYROPE_DEVICE void run() const {
    const int32 heads = params_.num_kv_heads * Spec::kGroupSize;
    const int32 rows = ld_global(&params_.counts->sharing_tokens) * heads;
    const int32 warps = block_threads() / kWarpThreads;
#pragma unroll 1
    for (int32 row = block_index() * warps + warp_index(); row < rows; row += grid_blocks() * warps)
      combine(ld_global_nc(params_.sharing_tokens + row / heads), row % heads);
  }

 private:
  LAZYROPE_DEVICE void combine(int32 token, int32 head) const {
    const auto slots = ld_global_nc(params_.cascade.slots + token);
    const OutputRows<Spec> output(params_.out, params_.lse, ValueScales(params_.pool), {},
                                  {token, 0, head / Spec::kGroupSize, 1});
#pragma unroll 1
    for (int32 quad = lane_index(); quad < kQuads; quad += kWarpThreads)
      output.template write<1>(0, head % Spec::kGroupSize, quad, combined(slots, head, quad));
  }

  // Result 0 is that of the request's own segments.
  LAZYROPE_DEVICE RowQuad combined(const SharedSlots& slots, int32 head, int32 quad) const {
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
  LAZYROPE_DEVICE RowQuad load(int32 slot, int32 head, int32 quad) const {
    const uint8* row = slots_.template row<Spec::kHeadDim>(slot, head);
    return make_row_quad(ld_global(reinterpret_cast<const Chunk*>(row) + quad),
                         ld_global(reinterpret_cast<const RowStats*>(row + Spec::kHeadDim * 4)));
  }

  const CombineSharedParams& params_;
  ResultSlots<true> slots_;
};

}  // namespace lazyrope
