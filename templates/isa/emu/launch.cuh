// Qualifiers, thread and CTA indices, and register reallocation in host C++. The emulator checks
// that all lanes of a warpgroup ask setmaxnreg for the same number of registers.
#pragma once

#include "abi/emulator.h"
#include "isa/types.cuh"

#define LAZYROPE_DEVICE inline
#define LAZYROPE_DEVICE_CALL inline
#define LAZYROPE_CONSTANT static const
#define LAZYROPE_KERNEL(name, threads, blocks_per_sm, Params)                                    \
  static void name##_text(const Params& params);                                                 \
  extern "C" void lazyrope_bind(lazyrope::EmulatorHost* host) { lazyrope::emulator = host; }     \
  extern "C" void name(const void* params) { name##_text(*static_cast<const Params*>(params)); } \
  static void name##_text(const Params& params)

#define LAZYROPE_EARLY_KERNEL LAZYROPE_KERNEL

namespace lazyrope {

// Each emulated kernel's library, and each test program, has its own pointer to the emulator.
[[gnu::visibility("hidden")]] inline EmulatorHost* emulator = nullptr;

// Used as a default argument, returns the file and line of the call.
constexpr Site here(const char* file = __builtin_FILE(), int32 line = __builtin_LINE()) {
  return {file, line};
}

inline int32 thread_index() { return emulator->thread->thread; }
inline int32 block_index() { return emulator->thread->block; }
inline int32 block_threads() { return emulator->thread->block_threads; }
inline int32 grid_blocks() { return emulator->thread->grid_blocks; }
inline int32 lane_index() { return thread_index() % kWarpThreads; }
inline int32 warp_index() { return thread_index() / kWarpThreads; }

template <int kRegisters>
inline void setmaxnreg_inc(Site site = here()) {
  static_assert(24 <= kRegisters && kRegisters <= 256 && kRegisters % 8 == 0);
  emulator->setmaxnreg(kRegisters, site);
}
template <int kRegisters>
inline void setmaxnreg_dec(Site site = here()) {
  setmaxnreg_inc<kRegisters>(site);
}

// The emulator runs one launch after the other, so there is nothing to wait for.
inline void griddepcontrol_wait() {}
inline void griddepcontrol_launch_dependents() {}

}  // namespace lazyrope
