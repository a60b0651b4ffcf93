#pragma once

#include <cstddef>
#include <cstdint>

#include "templates/abi/emulator.h"

namespace lazyrope {

// A kernel's text compiled for the host (templates/isa/emu).
using EmulatedKernel = void (*)(const void* params);
using EmulatorBind = void (*)(EmulatorHost*);

struct EmulatedLaunch {
  EmulatedKernel kernel;
  EmulatorBind bind;
  int ctas;
  int threads;
  int shared_bytes;
};

// Runs a launch to its end, one CTA after the other and each thread of it as a fiber. Throws
// std::runtime_error where the threads cannot go on: a barrier that not all reach.
void run_emulated(const EmulatedLaunch& launch, const void* params);

}  // namespace lazyrope
