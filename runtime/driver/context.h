#pragma once

#include <string>
#include <vector>

#include "runtime/driver/driver.h"

namespace lazyrope {

// What kernels need to know of a GPU, and what doctor shows.
struct DeviceInfo {
  int ordinal = 0;
  CUdevice handle = 0;
  std::string name;
  int compute_major = 0;
  int compute_minor = 0;
  int sm_count = 0;
  int l2_bytes = 0;
};

// The GPUs of a driver, asked once. Immutable, so threads may share it and questions take no lock.
class Devices {
 public:
  // `driver` must outlive this. Throws DriverError.
  explicit Devices(const Driver& driver);

  // Those of Driver::get(). Throws DriverError.
  static const Devices& get();

  int count() const noexcept { return static_cast<int>(infos_.size()); }

  // Throws DriverError for an ordinal that does not exist.
  const DeviceInfo& info(int ordinal) const;

  // The device of the context that is current on this thread. Throws DriverError if none is.
  const DeviceInfo& current() const;

 private:
  const Driver& driver_;
  std::vector<DeviceInfo> infos_;  // by ordinal
};

// Makes sure that a context of `device` is current on this thread: keeps the caller's if it is
// one, and otherwise makes the device's primary context current until the end of the scope.
class ScopedContext {
 public:
  // `driver` must outlive this. Throws DriverError.
  ScopedContext(const Driver& driver, const DeviceInfo& device);
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;
  ~ScopedContext();

  // Whether it is the primary context, which may end with this scope.
  bool is_borrowed() const { return pushed_; }

 private:
  const Driver& driver_;
  CUdevice device_;
  bool pushed_ = false;
};

}  // namespace lazyrope
