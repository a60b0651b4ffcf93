#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <vector>

#include "codegen/render.h"
#include "runtime/base/config.h"
#include "runtime/base/fork.h"
#include "runtime/driver/binary.h"
#include "runtime/driver/nvrtc_library.h"

namespace lazyrope {

// Compiles rendered sources to binaries. Safe to use from several threads at once.
class Compiler {
 public:
  virtual ~Compiler() = default;

  // Returns the options of the compiler, which are part of the cache's key.
  virtual std::vector<std::string> options(const Arch& arch) const = 0;

  // Returns the Binary::compiler of what compile() would return, or an empty text if there is no
  // compiler here.
  virtual std::string identity() = 0;
  // Tells whether cached binaries of other compilers of this kind may be used.
  virtual bool accepts_others() const { return true; }

  // Throws CompileError if nothing can be compiled for the arch.
  virtual void check(const Arch&) const {}

  // Compiles a kernel to a binary. Throws CompileError, and Stopped soon after a stop is requested,
  // if the compiler can stop.
  virtual Binary compile(const RenderedKernel& kernel, const Arch& arch, std::stop_token stop) = 0;
  Binary compile(const RenderedKernel& kernel, const Arch& arch) {
    return compile(kernel, arch, {});
  }
  // Returns the code in readable form: PTX, or for the emulator assembly. Throws CompileError.
  virtual std::string intermediate(const RenderedKernel& kernel, const Arch& arch) = 0;
};

// Compiles by NVRTC to cubins. The first call that needs NVRTC looks for it, and throws
// CompileError if there is none.
class NvrtcCompiler : public Compiler {
 public:
  using Compiler::compile;

  explicit NvrtcCompiler(std::shared_ptr<NvrtcLocator> nvrtc) : nvrtc_(std::move(nvrtc)) {}

  std::vector<std::string> options(const Arch& arch) const override;
  std::string identity() override;
  void check(const Arch& arch) const override;
  Binary compile(const RenderedKernel& kernel, const Arch& arch, std::stop_token stop) override;
  // Returns PTX.
  std::string intermediate(const RenderedKernel& kernel, const Arch& arch) override;

 private:
  const NvrtcLibrary& library();

  std::shared_ptr<NvrtcLocator> nvrtc_;
  // A copy of NVRTC, for a child of a process that was in NVRTC when it forked.
  PerProcess<const NvrtcLibrary> copy_{[this] {
    return std::make_unique<const NvrtcLibrary>(
        DynamicLibrary::open_copy(nvrtc_->library().path()));
  }};
};

}  // namespace lazyrope
