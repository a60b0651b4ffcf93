#pragma once

#include <atomic>
#include <memory>
#include <utility>

#include "runtime/base/fork.h"
#include "runtime/engine/engine.h"

namespace lazyrope {

// A kernel that is compiled when it is first asked for, or one that was compiled before. Safe to
// use from several threads.
class DeferredKernel {
 public:
  explicit DeferredKernel(std::shared_ptr<const Kernel> kernel)
      : kernel_(std::move(kernel)), is_ready_(true) {}
  // The engine must live as long as this object, unless get() has returned.
  DeferredKernel(Engine& engine, KernelRequest request, EngineOptions options)
      : engine_(&engine), request_(std::move(request)), options_(options) {}

  // Returns the kernel, after waiting for it if it is not compiled yet. Throws the failure of the
  // compilation, and what the interruption check throws; the next call then tries again.
  const std::shared_ptr<const Kernel>& get() {
    if (!is_ready_.load(std::memory_order_acquire)) compile();
    return kernel_;
  }

 private:
  void compile();

  Engine* engine_ = nullptr;
  KernelRequest request_ = {};
  EngineOptions options_ = {};
  ForkMutex mutex_;  // is not held while the kernel is compiled: the engine compiles it once
  std::shared_ptr<const Kernel> kernel_;  // does not change once it is ready
  std::atomic<bool> is_ready_ = false;
};

}  // namespace lazyrope
