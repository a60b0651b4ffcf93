#pragma once

#include <memory>
#include <string>

#include "runtime/compiler.h"
#include "runtime/device.h"

namespace lazyrope {

// Whether this build has the emulator.
bool has_emulator();

// Compiles a kernel's text for the host with a C++ compiler found there, given as a command. Null
// in a build without the emulator.
std::shared_ptr<Compiler> host_compiler(const std::string& command);

// The emulator as a device: its memory is the host's, its streams have always finished. SpecError
// in a build without the emulator.
std::shared_ptr<const Device> emulator_device();

}  // namespace lazyrope
