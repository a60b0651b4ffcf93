#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "runtime/driver/compiler.h"
#include "runtime/driver/device.h"

namespace lazyrope {

// Whether this build has the emulator.
bool has_emulator();

class Profile;

struct EmulatorOptions {
  std::uint64_t seed = 0;       // of the order in which threads run
  bool races = false;           // whether to look for accesses that nothing orders; slower
  int resident_threads = 1024;  // that are there at a time, in whole CTAs; one CTA at the least
  Profile* profile = nullptr;   // that counts accesses (runtime/emulator/profile.h); null: none
};

// How the launches of this process are run: as LAZYROPE_EMULATOR_SEED and LAZYROPE_EMULATOR_RACES
// say, or what has been set since. Without an emulator it means nothing.
EmulatorOptions& emulator_options();

// Compiles a kernel's text for the host with a C++ compiler found there, given as a command. Null
// in a build without the emulator.
std::shared_ptr<Compiler> host_compiler(const std::string& command);

// The emulator as a device: its memory is the host's, its streams have always finished. SpecError
// in a build without the emulator.
std::shared_ptr<const Device> emulator_device();

}  // namespace lazyrope
