#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "codegen/render.h"
#include "runtime/compiler.h"
#include "runtime/device.h"

namespace lazyrope {

// One compiled kernel: its source, its binary, and, once asked for, its code on each device.
class Kernel {
 public:
  Kernel(RenderedKernel rendered, const Arch& arch, Binary binary, bool from_cache,
         std::shared_ptr<Compiler> compiler)
      : rendered_(std::move(rendered)),
        arch_(arch),
        binary_(std::move(binary)),
        from_cache_(from_cache),
        compiler_(std::move(compiler)) {}

  std::string_view name() const { return to_string(rendered_.kind); }
  const std::string& source() const { return rendered_.source; }
  const RenderedKernel& rendered() const { return rendered_; }
  const Arch& arch() const { return arch_; }
  const Binary& binary() const { return binary_; }
  // Whether the binary came from the disk cache.
  bool from_cache() const { return from_cache_; }

  // Compiles the source once more, to PTX (for the emulator: assembly). CompileError.
  std::string intermediate() const { return compiler_->intermediate(rendered_, arch_); }

  // The kernel on a device, loaded by the first call. DriverError.
  const LoadedKernel& on(const Device& device) const;

 private:
  RenderedKernel rendered_;
  const Arch& arch_;
  Binary binary_;
  bool from_cache_;
  std::shared_ptr<Compiler> compiler_;
  mutable std::mutex mutex_;
  mutable std::map<const Device*, std::unique_ptr<LoadedKernel>> loaded_;
};

}  // namespace lazyrope
