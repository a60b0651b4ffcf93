// The emulator's interface in a build with LAZYROPE_EMULATOR=OFF, which needs no Boost.Context.
#include "codegen/error.h"
#include "runtime/emulator/device.h"

namespace lazyrope {

bool has_emulator() { return false; }

EmulatorOptions& emulator_options() {
  static constinit EmulatorOptions options;
  return options;
}

std::shared_ptr<Compiler> host_compiler(const std::string&) { return nullptr; }

std::shared_ptr<const Device> emulator_device() {
  throw SpecError(
      "this lazyrope was built without the emulator (LAZYROPE_EMULATOR=OFF): its kernels and "
      "tensors must be on a GPU");
}

}  // namespace lazyrope
