// Conformance kernels for elect.sync, setmaxnreg, griddepcontrol and named barriers.
#pragma once

#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "tests/isa/kernels/params.h"

namespace lazyrope {

// Bit 0 of the output: exactly one lane is elected. Bit 1: a second election elects the same lane.
// Then the warpgroup releases registers and takes some back.
LAZYROPE_DEVICE void elect(const ConformanceParams& params) {
  const uint32 first = vote_sync_ballot(elect_sync());
  const uint32 second = vote_sync_ballot(elect_sync());
  const bool is_one = first != 0 && (first & (first - 1)) == 0;
  setmaxnreg_dec<40>();
  setmaxnreg_inc<48>();
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  st_global(params.output + thread_index(), (is_one ? 1u : 0u) | (first == second ? 2u : 0u));
}

// Each warp passes words to the next one: it arrives at a named barrier without waiting, and the
// next warp waits there.
LAZYROPE_DEVICE void pass_on(const ConformanceParams& params) {
  const int32 warps = block_threads() / kWarpThreads;
  const SharedPtr mine = dynamic_shared_memory() + 4 * thread_index();
  uint32 value = ld_global(params.input + lane_index());
  if (warp_index() > 0) {
    bar_sync(warp_index(), 2 * kWarpThreads);
    value = ld_shared<uint32>(mine + -4 * kWarpThreads) * 5u + 1u;
  }
  st_shared(mine, value);
  if (warp_index() + 1 < warps) bar_arrive(warp_index() + 1, 2 * kWarpThreads);
  st_global(params.output + thread_index(), value);
}

LAZYROPE_DEVICE void conformance_kernel(const ConformanceParams& params) {
  if (params.which == Case::kElect)
    elect(params);
  else
    pass_on(params);
}

}  // namespace lazyrope
