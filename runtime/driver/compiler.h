#pragma once

#include <memory>
#include <string>
#include <vector>

#include "codegen/render.h"
#include "runtime/base/config.h"
#include "runtime/driver/binary.h"
#include "runtime/driver/nvrtc_library.h"

namespace lazyrope {

// Turns rendered sources into binaries. Safe to use from several threads at once.
class Compiler {
 public:
  virtual ~Compiler() = default;

  // What else than the source decides the binary; part of the cache's key.
  virtual std::vector<std::string> options(const Arch& arch) const = 0;

  // CompileError where nothing could be compiled for the arch.
  virtual void check(const Arch&) const {}

  // CompileError.
  virtual Binary compile(const RenderedKernel& kernel, const Arch& arch) = 0;
  virtual std::string intermediate(const RenderedKernel& kernel, const Arch& arch) = 0;
};

class NvrtcCompiler : public Compiler {
 public:
  explicit NvrtcCompiler(std::shared_ptr<NvrtcLocator> nvrtc) : nvrtc_(std::move(nvrtc)) {}

  std::vector<std::string> options(const Arch& arch) const override;
  void check(const Arch& arch) const override;
  Binary compile(const RenderedKernel& kernel, const Arch& arch) override;
  // PTX.
  std::string intermediate(const RenderedKernel& kernel, const Arch& arch) override;

 private:
  std::shared_ptr<NvrtcLocator> nvrtc_;
};

}  // namespace lazyrope
