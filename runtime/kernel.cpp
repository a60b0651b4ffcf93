#include "runtime/kernel.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/error.h"

namespace lazyrope {
namespace {

// Another NVRTC may have made what is in the cache, for another driver.
DriverError with_advice(DriverFailure failure, const Kernel& kernel) {
  failure.advice += fmt::format(
      "{}{} was read from the cache, made by {}: `lazyrope cache clear --yes` lets it be compiled "
      "here",
      failure.advice.empty() ? "" : "\n", kernel.name(), kernel.binary().compiler);
  return DriverError(std::move(failure));
}

}  // namespace

const LoadedKernel& Kernel::load_on(const Device& device) const {
  const std::lock_guard lock(mutex_);
  auto loaded = std::find_if(loaded_.begin(), loaded_.end(),
                             [&](const Loaded& l) { return l.device == &device; });
  if (loaded == loaded_.end()) {
    loaded_.push_back({&device, load(device)});
    loaded = std::prev(loaded_.end());
  }
  latest_.store(&*loaded, std::memory_order_release);
  return *loaded->kernel;
}

std::unique_ptr<LoadedKernel> Kernel::load(const Device& device) const {
  try {
    return device.load(binary_);
  } catch (const DriverError& error) {
    if (!from_cache()) throw;
    throw with_advice(error.failure(), *this);
  }
}

}  // namespace lazyrope
