// What else Hopper's warps do together, and ordered accesses to global memory.
#pragma once

#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "tests/isa/witness/params.h"

namespace lazyrope {

// How many lanes are elected, and whether twice the same ones; then a warpgroup trades registers.
LAZYROPE_DEVICE void elect(const WitnessParams& params) {
  const uint32 first = vote_sync_ballot(elect_sync());
  const uint32 second = vote_sync_ballot(elect_sync());
  const bool is_one = first != 0 && (first & (first - 1)) == 0;
  setmaxnreg_dec<40>();
  setmaxnreg_inc<48>();
  griddepcontrol_wait();
  griddepcontrol_launch_dependents();
  st_global(params.output + thread_index(), (is_one ? 1u : 0u) | (first == second ? 2u : 0u));
}

// Warp 0 gives words, by a barrier where it does not wait; the warp after takes them, and so on.
LAZYROPE_DEVICE void pass_on(const WitnessParams& params) {
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

// CTA after CTA adds to a sum, when the one before has said so. The input: a counter, a flag, the
// sum, each 0; then a word of each CTA. The output: what each has found.
LAZYROPE_DEVICE void in_turn(const WitnessParams& params) {
  if (thread_index() != 0) return;
  const uint32 turn = static_cast<uint32>(block_index());
  uint32* sum = params.input + 2;
  while (ld_acquire_gpu(params.input + 1) != turn) {
  }
  const uint32 value = ld_global(sum) + ld_global(params.input + 3 + block_index());
  st_global(sum, value);
  st_global(params.output + block_index(), value);
  const uint32 before = atom_add_acq_rel_gpu(params.input, turn + 3u);
  st_global(params.output + grid_blocks() + block_index(), before);
  if (block_index() % 2 == 0)
    st_release_gpu(params.input + 1, turn + 1u);
  else
    red_add_release_gpu(params.input + 1, 1u);
}

LAZYROPE_DEVICE void witness(const WitnessParams& params) {
  switch (params.which) {
    case Case::kElect:
      return elect(params);
    case Case::kPassOn:
      return pass_on(params);
    default:
      return in_turn(params);
  }
}

}  // namespace lazyrope
