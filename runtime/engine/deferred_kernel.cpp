#include "runtime/engine/deferred_kernel.h"

#include <mutex>

namespace lazyrope {

std::shared_ptr<const Kernel> DeferredKernel::get() {
  {
    const std::lock_guard lock(mutex_);
    if (kernel_ != nullptr) return kernel_;
  }
  const KernelResult result = engine_->try_kernels({request_}, options_).front();
  if (result.failure) std::rethrow_exception(result.failure);
  const std::lock_guard lock(mutex_);
  kernel_ = result.kernel;
  return kernel_;
}

}  // namespace lazyrope
