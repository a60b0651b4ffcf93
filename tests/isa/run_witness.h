#pragma once

#include <memory>
#include <string_view>

#include "runtime/driver/compiler.h"
#include "runtime/driver/device.h"
#include "tests/isa/witnesses.h"

namespace lazyrope {

// The source of a kernel that does what the text in tests/isa/witness says.
RenderedKernel render_witness(const WitnessText& text, std::string_view isa);

// What compiles such kernels for the arch: NVRTC, or for the emulator this machine's C++ compiler.
std::shared_ptr<Compiler> witness_compiler(const Arch& arch);

// Compiles a text for a device, and runs rows of it there.
class WitnessRunner {
 public:
  // CompileError, DriverError.
  WitnessRunner(const WitnessText& text, std::shared_ptr<const Device> device);

  const Binary& binary() const { return binary_; }

  // The row's output, into memory that is full of the byte `fill` before.
  Words run(const Witness& witness, unsigned char fill) const;

 private:
  const WitnessText& text_;
  std::shared_ptr<const Device> device_;
  Binary binary_;
  std::unique_ptr<LoadedKernel> kernel_;
};

}  // namespace lazyrope
