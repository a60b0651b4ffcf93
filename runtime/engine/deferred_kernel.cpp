#include "runtime/engine/deferred_kernel.h"

#include <mutex>

namespace lazyrope {

void DeferredKernel::compile() {
  const KernelResult result = engine_->try_kernels({request_}, options_).front();
  if (result.failure) std::rethrow_exception(result.failure);
  const std::lock_guard lock(mutex_);
  if (is_ready_) return;  // another thread was faster
  kernel_ = result.kernel;
  is_ready_.store(true, std::memory_order_release);
}

}  // namespace lazyrope
