#include "runtime/kernel.h"

#include <algorithm>

namespace lazyrope {

const LoadedKernel& Kernel::load_on(const Device& device) const {
  const std::lock_guard lock(mutex_);
  auto loaded = std::find_if(loaded_.begin(), loaded_.end(),
                             [&](const Loaded& l) { return l.device == &device; });
  if (loaded == loaded_.end()) {
    loaded_.push_back({&device, device.load(binary_)});
    loaded = std::prev(loaded_.end());
  }
  latest_.store(&*loaded, std::memory_order_release);
  return *loaded->kernel;
}

}  // namespace lazyrope
