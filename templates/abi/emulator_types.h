// Types that emulated device text and its host (runtime/emulator) share.
#pragma once

#include "abi/types.h"

namespace lazyrope {

// A line of device text, for messages.
struct Site {
  const char* file;
  int32 line;
};

struct EmulatorThread {
  int32 thread;
  int32 block;
  int32 block_threads;
  int32 grid_blocks;
  uint32 wgmma_fences = 0;  // wgmma.fence instructions that the thread has executed
};

enum class EmulatedLoad { kPlain, kNonCoherent, kRelaxed };
// Only mutants of the kernels (tests/mutation) use kAdd, and kAcquire or kRelease alone.
enum class EmulatedAtomic { kInc, kAdd, kExch };
// The memory order of an atomic operation.
enum class EmulatedOrder { kRelaxed, kAcquire, kRelease, kAcquireRelease };
enum class EmulatedShuffle { kIdx, kBfly, kUp };
enum class EmulatedElement { kBf16, kFp16, kE4m3 };

}  // namespace lazyrope
