#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>

#include "codegen/render.h"
#include "runtime/base/error.h"
#include "runtime/base/fork.h"
#include "runtime/driver/compiler.h"
#include "runtime/driver/device.h"

namespace lazyrope {

// One compiled kernel: its source, its binary, and its code on each device that it has run on. Safe
// to use from several threads.
class Kernel {
 public:
  struct Origin {
    bool from_cache;             // the binary came from the disk cache
    double ready_ms;             // milliseconds from the request to the binary
    bool may_compile;            // the kernel may be compiled again if a driver refuses the binary
    std::string entry_key = {};  // the key of its cache entry
  };

  Kernel(RenderedKernel rendered, const Arch& arch, Binary binary, Origin origin,
         std::shared_ptr<Compiler> compiler)
      : rendered_(std::move(rendered)),
        arch_(arch),
        binary_(std::move(binary)),
        origin_(std::move(origin)),
        compiler_(std::move(compiler)) {}

  std::string_view name() const { return to_string(rendered_.kind); }
  const std::string& source() const { return rendered_.source; }
  const RenderedKernel& rendered() const { return rendered_; }
  const Arch& arch() const { return arch_; }
  // Returns the binary in use. If a driver refused the cached binary, it is the one compiled
  // instead.
  const Binary& binary() const {
    const Binary* recompiled = recompiled_.load(std::memory_order_acquire);
    return recompiled != nullptr ? *recompiled : binary_;
  }
  // Returns the key of the kernel's cache entry.
  const std::string& entry_key() const { return origin_.entry_key; }
  // Returns true if the binary in use came from the disk cache.
  bool from_cache() const {
    return origin_.from_cache && recompiled_.load(std::memory_order_acquire) == nullptr;
  }
  // Returns the milliseconds from the request to the binary: a cache look-up, and a compilation
  // after a miss.
  double ready_ms() const { return origin_.ready_ms; }

  // Compiles the source again, to PTX or for the emulator to assembly. Throws CompileError.
  std::string intermediate() const { return compiler_->intermediate(rendered_, arch_); }

  // Returns the kernel that is loaded on a device. The first call for a device loads it. A call for
  // the same device as the previous one takes no lock. Throws DriverError.
  const LoadedKernel& on(const Device& device) const {
    const Loaded* latest = latest_.load(std::memory_order_acquire);
    return latest != nullptr && latest->device == &device ? *latest->kernel : load_on(device);
  }

 private:
  struct Loaded {
    const Device* device;
    std::unique_ptr<LoadedKernel> kernel;
    std::unique_ptr<Loaded> next;
  };

  const LoadedKernel& load_on(const Device& device) const;
  std::unique_ptr<LoadedKernel> load(const Device& device) const;
  std::unique_ptr<LoadedKernel> recompile_and_load(const Device& device,
                                                   const DriverError& refusal) const;

  RenderedKernel rendered_;
  const Arch& arch_;
  Binary binary_;
  Origin origin_;
  std::shared_ptr<Compiler> compiler_;
  mutable ForkMutex mutex_;
  mutable std::unique_ptr<Loaded> loaded_;  // one per device, never removed; the first of a list
  mutable std::atomic<const Loaded*> latest_ = nullptr;
  mutable std::unique_ptr<Binary> recompiled_owner_;
  mutable std::atomic<const Binary*> recompiled_ = nullptr;
};

}  // namespace lazyrope
