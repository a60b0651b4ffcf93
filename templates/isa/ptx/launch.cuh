// Qualifiers, thread and CTA indices, register reallocation and dependent launches. PTX ISA 9.0,
// "Special Registers", "setmaxnreg" and "griddepcontrol".
#pragma once

#include "isa/types.cuh"

#define LAZYROPE_DEVICE __device__ __forceinline__
// Marks a function that several call sites outside the main loops share: it is compiled once, not
// inlined.
#define LAZYROPE_DEVICE_CALL __device__ __noinline__
#define LAZYROPE_CONSTANT __device__ const
// A kernel may start before the kernels ahead of it in its stream have ended (programmatic
// dependent launch). Its body therefore runs after griddepcontrol.wait, when their writes are
// visible.
#define LAZYROPE_KERNEL(name, threads, blocks_per_sm, Params)                    \
  LAZYROPE_DEVICE void name##_text(const Params& params);                        \
  extern "C" __global__ __launch_bounds__(                                       \
      threads, blocks_per_sm) void name(const __grid_constant__ Params params) { \
    lazyrope::griddepcontrol_wait();                                             \
    name##_text(params);                                                         \
  }                                                                              \
  LAZYROPE_DEVICE void name##_text(const Params& params)

// Does the same for a kernel that reads nothing of what the kernel ahead of it writes. It may begin
// while the kernel ahead ends, if that kernel began with griddepcontrol.wait. It waits at its own
// end instead, because a kernel after it relies on the results of both.
#define LAZYROPE_EARLY_KERNEL(name, threads, blocks_per_sm, Params)              \
  LAZYROPE_DEVICE void name##_text(const Params& params);                        \
  extern "C" __global__ __launch_bounds__(                                       \
      threads, blocks_per_sm) void name(const __grid_constant__ Params params) { \
    name##_text(params);                                                         \
    lazyrope::griddepcontrol_wait();                                             \
  }                                                                              \
  LAZYROPE_DEVICE void name##_text(const Params& params)

namespace lazyrope {

// The indices that a kernel reads from %tid again at each use: none (0), lane_index() (1), or
// lane_index(), warp_index() and thread_index() (2). The compiler then computes values that derive
// from them at their use. Hoisted out of a main loop, these values would occupy registers.
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
// The division is unsigned, so that it compiles to a single shift.
LAZYROPE_DEVICE int32 warp_index() {
  return static_cast<int32>(static_cast<uint32>(thread_index()) / kWarpThreads);
}

#undef LAZYROPE_REREAD_TID

// setmaxnreg (sm_90a) sets the registers per thread of a warpgroup, all warps of which execute it:
// 24 to 256, a multiple of 8. `inc` waits until the registers are available; `dec` releases the
// surplus.
template <int kRegisters>
LAZYROPE_DEVICE void setmaxnreg_inc() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
LAZYROPE_DEVICE void setmaxnreg_dec() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}

// Waits until the grids that this grid depends on have ended and their writes are visible. Before
// sm_90 a grid never starts before then, so the call is empty.
LAZYROPE_DEVICE void griddepcontrol_wait() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}
// Lets the dependent grids start once every CTA of this grid has made this call or ended.
LAZYROPE_DEVICE void griddepcontrol_launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace lazyrope
