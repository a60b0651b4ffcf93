#pragma once

#include <memory>
#include <string_view>

#include "runtime/driver/compiler.h"
#include "runtime/driver/device.h"
#include "tests/isa/conformance_cases.h"

namespace lazyrope {

// Renders a conformance kernel for an instruction set, "ptx" or "emu".
RenderedKernel render_conformance_kernel(const ConformanceKernel& kernel, std::string_view isa);

// Returns the compiler for the arch: NVRTC, or this machine's C++ compiler for the emulator.
std::shared_ptr<Compiler> conformance_compiler(const Arch& arch);

// Compiles a conformance kernel for a device and runs its cases there.
class ConformanceRunner {
 public:
  // Throws CompileError or DriverError.
  ConformanceRunner(const ConformanceKernel& kernel, std::shared_ptr<const Device> device);

  const Binary& binary() const { return binary_; }

  // Runs a case and returns its output. Every byte of the output is `fill` before the run.
  Words run(const ConformanceCase& test_case, unsigned char fill) const;

 private:
  const ConformanceKernel& conformance_kernel_;
  std::shared_ptr<const Device> device_;
  Binary binary_;
  std::unique_ptr<LoadedKernel> kernel_;
};

}  // namespace lazyrope
