#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/driver/compiler.h"
#include "runtime/driver/device.h"

namespace lazyrope {

// Returns true in a build with the emulator (it needs Boost.Context).
bool has_emulator();

class Profile;

// Settings of the launches that the emulator runs.
struct EmulatorOptions {
  std::uint64_t seed = 0;       // seeds the order in which threads run
  bool races = false;           // looks for data races; slower
  int resident_threads = 1024;  // most threads at a time, in whole CTAs; one CTA always runs
  Profile* profile = nullptr;   // counts memory accesses (runtime/emulator/profile.h); null: none
};

// Returns the options of this process, which the caller may change between launches. The variables
// LAZYROPE_EMULATOR_SEED and LAZYROPE_EMULATOR_RACES set their first values. A build without the
// emulator ignores them.
EmulatorOptions& emulator_options();

// Returns a compiler that compiles a kernel's text for the host with this C++ compiler command.
// Returns null in a build without the emulator. Thread-safe.
std::shared_ptr<Compiler> host_compiler(const std::string& command);

// Returns the emulator as a device. Its memory is the host's, and its streams are always idle.
// Throws SpecError in a build without the emulator. Thread-safe.
std::shared_ptr<const Device> emulator_device();

}  // namespace lazyrope
