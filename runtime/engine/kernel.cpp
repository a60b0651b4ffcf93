#include "runtime/engine/kernel.h"

#include <cuda.h>
#include <fmt/format.h>

#include <mutex>

#include "runtime/base/log.h"
#include "runtime/base/trace.h"

namespace lazyrope {
namespace {

// Returns advice that names the compiler of the cached kernel, which may be an NVRTC that is newer
// than the driver.
std::string recompile_advice(const Kernel& kernel) {
  return fmt::format(
      "{} was read from the cache, made by {}; `lazyrope cache clear --yes` clears the cache, and "
      "the kernel is then compiled here",
      kernel.name(), kernel.binary().compiler);
}

DriverError with_advice(DriverFailure failure, const Kernel& kernel) {
  failure.advice += (failure.advice.empty() ? "" : "\n") + recompile_advice(kernel);
  return DriverError(std::move(failure));
}

}  // namespace

const LoadedKernel& Kernel::load_on(const Device& device) const {
  const std::lock_guard lock(mutex_);
  const Loaded* loaded = loaded_.get();
  while (loaded != nullptr && loaded->device != &device) loaded = loaded->next.get();
  if (loaded == nullptr) {
    TraceSpan span("load a kernel");
    span.with("kernel", rendered_.entry).with("device", device.name());
    auto added = std::make_unique<Loaded>(Loaded{&device, load(device), nullptr});
    // A child that is forked between these lines sees an empty list, and loads again.
    added->next = std::move(loaded_);
    loaded_ = std::move(added);
    loaded = loaded_.get();
  }
  latest_.store(loaded, std::memory_order_release);
  return *loaded->kernel;
}

std::unique_ptr<LoadedKernel> Kernel::load(const Device& device) const {
  try {
    return device.load(binary());
  } catch (const DriverError& error) {
    if (!from_cache()) throw;
    if (!origin_.may_compile || !refuses_code(error.failure()))
      throw with_advice(error.failure(), *this);
    return recompile_and_load(device, error);
  }
}

// The entry on disk stays, because other processes may be able to use it.
std::unique_ptr<LoadedKernel> Kernel::recompile_and_load(const Device& device,
                                                         const DriverError& refusal) const {
  std::unique_ptr<Binary> recompiled;
  try {
    recompiled = std::make_unique<Binary>(compiler_->compile(rendered_, arch_));
  } catch (const CompileError& error) {
    DriverFailure failure = refusal.failure();
    failure.advice += fmt::format("{}it cannot be compiled here: {}",
                                  failure.advice.empty() ? "" : "\n", error.what());
    throw with_advice(std::move(failure), *this);
  }
  std::unique_ptr<LoadedKernel> loaded = device.load(*recompiled);
  log_message(
      LogLevel::kWarning, "{}; it was compiled here for this process alone{}. {}", refusal.what(),
      recompiled->spill_bytes > 0 ? fmt::format(", and spills {} bytes", recompiled->spill_bytes)
                                  : "",
      recompile_advice(*this));
  recompiled_owner_ = std::move(recompiled);
  recompiled_.store(recompiled_owner_.get(), std::memory_order_release);
  return loaded;
}

}  // namespace lazyrope
