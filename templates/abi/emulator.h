// What emulated device text asks of its host (runtime/emulator.h). Not part of any GPU kernel.
#pragma once

#include "abi/types.h"

namespace lazyrope {

struct EmulatorThread {
  int32 thread;
  int32 block;
  int32 block_threads;
  int32 grid_blocks;
};

// Runs an operation of a whole warp: `lanes` are what its 32 lanes passed.
using EmulatorOperation = void (*)(void* const* lanes);

struct EmulatorHost {
  const EmulatorThread* thread;  // the thread that runs now
  uint8* shared_memory;          // of its CTA

  // The caller waits until all lanes of its warp have come; the last runs the operation.
  void (*warp_operation)(const char* name, EmulatorOperation run, void* lane);
  void (*cta_barrier)();
  // Copies when the group is waited for, not before.
  void (*async_copy)(uint32 to, const void* from, int32 size, int32 bytes);
  void (*async_commit)();
  void (*async_wait)(int32 pending);
};

}  // namespace lazyrope
