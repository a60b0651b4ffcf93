// Conformance kernels for exchange between the lanes of a warp. The warps share `count` exchanges.
#pragma once

#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "tests/isa/kernels/params.h"

namespace lazyrope {

// The input has four words per lane: a value of 8 bytes, the operand of the shuffles, and an unused
// word. The output is the result of each shuffle.
LAZYROPE_DEVICE void exchange_values(const ConformanceParams& params, int32 at) {
  const int64 value = ld_global(reinterpret_cast<const int64*>(params.input + 4 * at));
  const int32 lane = static_cast<int32>(ld_global(params.input + 4 * at + 2));
  const uint32 low = static_cast<uint32>(value);
  uint32* to = params.output + 6 * at;
  st_global(reinterpret_cast<int64*>(to), shfl_sync_up(value, lane));
  st_global(to + 2, shfl_sync_up(low, lane));
  st_global(to + 3, shfl_sync_idx(low, lane));
  st_global(to + 4, shfl_sync_bfly(low, lane));
  st_global(to + 5, float_as_bits(shfl_sync_bfly(bits_as_float(low), lane)));
}

LAZYROPE_DEVICE void vote(const ConformanceParams& params, int32 at) {
  const bool predicate = ld_global(params.input + at) != 0;
  st_global(params.output + 2 * at, vote_sync_ballot(predicate));
  st_global(params.output + 2 * at + 1, vote_sync_any(predicate) ? 1u : 0u);
}

// Passes words to the next lane through shared memory. A barrier of the warp must suffice.
LAZYROPE_DEVICE void pass_by_shared_memory(const ConformanceParams& params, int32 at) {
  const SharedPtr slots = dynamic_shared_memory() + 4 * kWarpThreads * warp_index();
  st_shared(slots + 4 * lane_index(), ld_global(params.input + at));
  bar_warp_sync();
  const uint32 got = ld_shared<uint32>(slots + 4 * ((lane_index() + 1) % kWarpThreads));
  bar_warp_sync();
  st_global(params.output + at, got);
}

LAZYROPE_DEVICE void conformance_kernel(const ConformanceParams& params) {
  for (int32 i = warp_index(); i < params.count; i += block_threads() / kWarpThreads) {
    const int32 at = i * kWarpThreads + lane_index();
    if (params.which == Case::kShfl)
      exchange_values(params, at);
    else if (params.which == Case::kVote)
      vote(params, at);
    else
      pass_by_shared_memory(params, at);
  }
}

}  // namespace lazyrope
