#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/render.h"
#include "runtime/base/config.h"
#include "runtime/driver/binary.h"
#include "runtime/driver/nvrtc_library.h"

namespace lazyrope {

// Compiles rendered sources to binaries. Safe to use from several threads at once.
class Compiler {
 public:
  virtual ~Compiler() = default;

  // Returns the options of the compiler, which are part of the cache's key.
  virtual std::vector<std::string> options(const Arch& arch) const = 0;

  // Returns the Binary::compiler that a cached binary must have. An empty text accepts the binaries
  // of every compiler.
  virtual std::string required_compiler() { return {}; }

  // Throws CompileError if nothing can be compiled for the arch.
  virtual void check(const Arch&) const {}

  // Compiles a kernel to a binary. Throws CompileError.
  virtual Binary compile(const RenderedKernel& kernel, const Arch& arch) = 0;
  // Returns the code in readable form: PTX, or for the emulator assembly. Throws CompileError.
  virtual std::string intermediate(const RenderedKernel& kernel, const Arch& arch) = 0;
};

// Compiles by NVRTC to cubins. The first call that needs NVRTC looks for it, and throws
// CompileError if there is none.
class NvrtcCompiler : public Compiler {
 public:
  explicit NvrtcCompiler(std::shared_ptr<NvrtcLocator> nvrtc) : nvrtc_(std::move(nvrtc)) {}

  std::vector<std::string> options(const Arch& arch) const override;
  void check(const Arch& arch) const override;
  Binary compile(const RenderedKernel& kernel, const Arch& arch) override;
  // Returns PTX.
  std::string intermediate(const RenderedKernel& kernel, const Arch& arch) override;

 private:
  std::shared_ptr<NvrtcLocator> nvrtc_;
};

}  // namespace lazyrope
