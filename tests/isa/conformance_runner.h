#pragma once

#include <memory>
#include <string_view>

#include "runtime/driver/compiler.h"
#include "runtime/driver/device.h"
#include "tests/isa/conformance_cases.h"

namespace lazyrope {

// The source of a kernel that does what the text in tests/isa/kernels says.
RenderedKernel render_conformance_kernel(const ConformanceKernel& text, std::string_view isa);

// What compiles such kernels for the arch: NVRTC, or for the emulator this machine's C++ compiler.
std::shared_ptr<Compiler> conformance_compiler(const Arch& arch);

// Compiles a text for a device, and runs rows of it there.
class ConformanceRunner {
 public:
  // CompileError, DriverError.
  ConformanceRunner(const ConformanceKernel& text, std::shared_ptr<const Device> device);

  const Binary& binary() const { return binary_; }

  // The row's output, into memory that is full of the byte `fill` before.
  Words run(const ConformanceCase& test_case, unsigned char fill) const;

 private:
  const ConformanceKernel& text_;
  std::shared_ptr<const Device> device_;
  Binary binary_;
  std::unique_ptr<LoadedKernel> kernel_;
};

}  // namespace lazyrope
