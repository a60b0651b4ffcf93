#include "runtime/kernel.h"

namespace lazyrope {

const LoadedKernel& Kernel::on(const Device& device) const {
  const std::lock_guard lock(mutex_);
  std::unique_ptr<LoadedKernel>& kernel = loaded_[&device];
  if (kernel == nullptr) kernel = device.load(binary_);
  return *kernel;
}

}  // namespace lazyrope
