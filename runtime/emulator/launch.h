#pragma once

#include <string>
#include <vector>

#include "runtime/driver/device.h"
#include "runtime/emulator/device.h"
#include "templates/abi/emulator.h"

namespace lazyrope {

// A kernel's text compiled for the host (templates/isa/emu).
using EmulatedKernel = void (*)(const void* params);
using EmulatorBind = void (*)(EmulatorHost*);

struct EmulatedLaunch {
  std::string name;
  EmulatedKernel kernel;
  EmulatorBind bind;
  int ctas;
  int threads;
  int shared_bytes;
};

// Runs a launch to its end: each thread is a fiber, several CTAs run at a time, and which thread
// goes on next is drawn at random. `memory` is all that the kernel may reach beside its parameters.
// KernelFault where it breaks a rule (runtime/emulator/fault.h).
void run_emulated(const EmulatedLaunch& launch, const void* params, std::vector<MemoryRange> memory,
                  const EmulatorOptions& options);

}  // namespace lazyrope
