// Qualifiers, where a thread stands, and what it asks of the machine. PTX ISA 9.0, "Special
// Registers", "setmaxnreg", "griddepcontrol".
#pragma once

#include "isa/types.cuh"

#define LAZYROPE_DEVICE __device__ __forceinline__
// For what is called from several places off the main loops: one copy of the code.
#define LAZYROPE_DEVICE_CALL __device__ __noinline__
#define LAZYROPE_CONSTANT __device__ const
// A kernel may be launched before those ahead of it in its stream have ended: its text begins when
// they have, and what they wrote is there.
#define LAZYROPE_KERNEL(name, threads, blocks_per_sm, Params)                    \
  LAZYROPE_DEVICE void name##_text(const Params& params);                        \
  extern "C" __global__ __launch_bounds__(                                       \
      threads, blocks_per_sm) void name(const __grid_constant__ Params params) { \
    lazyrope::griddepcontrol_wait();                                             \
    name##_text(params);                                                         \
  }                                                                              \
  LAZYROPE_DEVICE void name##_text(const Params& params)

namespace lazyrope {

// Which numbers a kernel reads anew wherever it uses them: none, its lanes' (1), all of its
// threads' (2). What is computed from them is then computed there, too: hoisted out of a main loop
// it would take registers.
#ifndef LAZYROPE_REREADS_TID
#define LAZYROPE_REREADS_TID 0
#endif
#define LAZYROPE_REREAD_TID(x) asm volatile("mov.u32 %0, %%tid.x;" : "=r"(x))

LAZYROPE_DEVICE int32 thread_index() {
  int32 x = static_cast<int32>(threadIdx.x);
  if constexpr (LAZYROPE_REREADS_TID == 2) LAZYROPE_REREAD_TID(x);
  return x;
}
LAZYROPE_DEVICE int32 block_index() { return static_cast<int32>(blockIdx.x); }
LAZYROPE_DEVICE int32 block_threads() { return static_cast<int32>(blockDim.x); }
LAZYROPE_DEVICE int32 grid_blocks() { return static_cast<int32>(gridDim.x); }
LAZYROPE_DEVICE int32 lane_index() {
  int32 x = thread_index();
  if constexpr (LAZYROPE_REREADS_TID == 1) LAZYROPE_REREAD_TID(x);
  return x & (kWarpThreads - 1);
}
// Without a sign, so that a shift is all it takes.
LAZYROPE_DEVICE int32 warp_index() {
  return static_cast<int32>(static_cast<uint32>(thread_index()) / kWarpThreads);
}

#undef LAZYROPE_REREAD_TID

// Of all warps of a warpgroup, 24 to 256 registers a thread, a multiple of 8 (sm_90a): waits until
// there are so many; or gives back what is beyond.
template <int kRegisters>
LAZYROPE_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
LAZYROPE_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Waits for the grids that this one was launched to follow, and their writes. Before sm_90 none
// starts before they have ended.
LAZYROPE_DEVICE void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// The grids that follow may start, once all CTAs have said so or ended.
LAZYROPE_DEVICE void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace lazyrope
