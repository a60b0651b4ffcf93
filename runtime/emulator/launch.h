#pragma once

#include <string>
#include <vector>

#include "runtime/driver/device.h"
#include "runtime/emulator/device.h"
#include "templates/abi/emulator.h"

namespace lazyrope {

// The emulator's entry point: it runs a kernel on the host and checks each of its instructions. A
// kernel may break a rule and still compute the right result on one GPU; the emulator faults
// instead.
//
// - Bounds and alignment: every access must fall into a MemoryRange of the launch or the CTA's
// shared memory, at a multiple of its size (global_memory.h, shared_memory.h).
// - Poison: the destination of an asynchronous copy holds NaN bytes, and any access to it faults
// until the copy has landed. cp.async and wgmma complete at the wait that covers them, which is as
// late as PTX allows. A random draw decides whether a bulk load lands early or late.
// - Proxy fence: bulk copies and wgmma may read a thread's stores only after that thread's
// fence.proxy.async.
// - Races: vector clocks find two accesses to the same memory that no synchronization orders
// (races.h; slower, so it is an option).
// - Collectives: all lanes of a warp or warpgroup must reach the same instruction (machine.h).
// - Progress: a deadlock names every waiting thread and its barrier; an endless poll faults, too.

// A kernel compiled for the host (templates/isa/emu), and the function that gives it the
// EmulatorHost which executes its instructions.
using EmulatedKernel = void (*)(const void* params);
using EmulatorBind = void (*)(EmulatorHost*);

// A launch of `ctas` CTAs of `threads` threads, with `shared_bytes` bytes of shared memory each.
struct EmulatedLaunch {
  std::string name;
  EmulatedKernel kernel;
  EmulatorBind bind;
  int ctas;
  int threads;
  int shared_bytes;
};

// Runs a launch to its end. Each thread is a fiber, several CTAs run at a time, and a random draw
// picks the thread that continues. `memory` is all that the kernel may access besides its
// parameters. A kernel that breaks a rule throws a KernelFault (runtime/emulator/fault.h), and
// check_interruption() may end the launch.
//
// Thread-safe: one launch runs at a time, others wait for it, and check_interruption() may end the
// wait. A handler of a signal that check_interruption() runs cannot launch another kernel: that is
// a DriverError.
void run_emulated(const EmulatedLaunch& launch, const void* params, std::vector<MemoryRange> memory,
                  const EmulatorOptions& options);

}  // namespace lazyrope
