// What emulated device text and its host tell each other of.
#pragma once

#include "abi/types.h"

namespace lazyrope {

// A line of device text.
struct Site {
  const char* file;
  int32 line;
};

struct EmulatorThread {
  int32 thread;
  int32 block;
  int32 block_threads;
  int32 grid_blocks;
  uint32 wgmma_fences = 0;  // that it has made
};

enum class EmulatedLoad { kPlain, kNonCoherent, kRelaxed };
// kAdd is for mutants of the kernels (tests/mutation), and so is one of acquire and release alone.
enum class EmulatedAtomic { kInc, kAdd, kExch };
// Of an atomic operation: acquire and release, both, or neither.
enum class EmulatedOrder { kRelaxed, kAcquire, kRelease, kAcquireRelease };
enum class EmulatedShuffle { kIdx, kBfly, kUp };
enum class EmulatedElement { kBf16, kFp16 };

}  // namespace lazyrope
