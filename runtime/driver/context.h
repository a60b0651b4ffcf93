#pragma once

#include <string>
#include <vector>

#include "runtime/driver/driver.h"

namespace lazyrope {

// The facts about a GPU that kernels need and doctor shows.
struct DeviceInfo {
  int ordinal = 0;
  CUdevice handle = 0;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int sm_count = 0;
  int l2_bytes = 0;
};

// The GPUs of a driver, queried once. It is immutable, so threads may share it without locks.
class Devices {
 public:
  // Queries all GPUs. `driver` must outlive this object. Throws DriverError.
  explicit Devices(const Driver& driver);

  // Returns the GPUs of Driver::get(). Throws DriverError.
  static const Devices& get();

  int count() const noexcept { return static_cast<int>(infos_.size()); }

  // Returns the GPU of that ordinal. Throws DriverError if there is none.
  const DeviceInfo& info(int ordinal) const;

  // Returns the GPU of the context that is current on this thread. Throws DriverError if none is.
  const DeviceInfo& current() const;

 private:
  const Driver& driver_;
  std::vector<DeviceInfo> infos_;  // by ordinal
};

// Ensures that a context of `device` is current on this thread. It keeps the caller's context if
// that is one of `device`. Otherwise the device's primary context is current until the scope ends.
class ScopedContext {
 public:
  // Makes the context current. `driver` must outlive this object. Throws DriverError.
  ScopedContext(const Driver& driver, const DeviceInfo& device);
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  ~ScopedContext();

  // Returns true if this scope retains the primary context. It is then destroyed with the scope,
  // unless other code retains it too.
  bool retains_primary_context() const { return pushed_; }

 private:
  const Driver& driver_;
  CUdevice device_;
  bool pushed_ = false;
};

}  // namespace lazyrope
