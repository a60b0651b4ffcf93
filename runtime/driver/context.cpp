#include "runtime/driver/context.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>

#include "runtime/base/fork.h"

namespace lazyrope {
namespace {

DeviceInfo query_device(const Driver& driver, int ordinal) {
  const CUdevice device = driver.device(ordinal);
  const auto attribute = [&](CUdevice_attribute which) {
    return driver.device_attribute(which, device);
  };
  DeviceInfo info;
  info.ordinal = ordinal;
  info.handle = device;
  info.name = driver.device_name(device);
  info.compute_major = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  info.compute_minor = attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  info.sm_count = attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  info.l2_bytes = attribute(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
  return info;
}

[[noreturn]] void no_such_device(const char* call, int device, int count) {
  throw DriverError(DriverFailure{
      call, CUDA_ERROR_INVALID_DEVICE, "CUDA_ERROR_INVALID_DEVICE",
      fmt::format("there is no device {}: this process sees {} (counted from 0)", device, count),
      "check CUDA_VISIBLE_DEVICES and nvidia-smi"});
}

bool is_current(const Driver& driver, CUdevice device) {
  return driver.current_context() != nullptr && driver.current_context_device() == device;
}

// It is never destroyed, because other objects' destructors may use it at exit.
PerProcess<const Devices>& device_list() {
  static auto& list =
      *new PerProcess<const Devices>([] { return std::make_unique<const Devices>(Driver::get()); });
  return list;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_device_list() { (void)device_list(); }

}  // namespace

Devices::Devices(const Driver& driver) : driver_(driver) {
  const int count = driver.device_count();
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    infos_.push_back(query_device(driver, ordinal));
  }
}

const Devices& Devices::get() { return device_list().get(); }

const DeviceInfo& Devices::info(int ordinal) const {
  if (ordinal < 0 || ordinal >= count()) no_such_device("cuDeviceGet", ordinal, count());
  return infos_[static_cast<std::size_t>(ordinal)];
}

const DeviceInfo& Devices::current() const {
  const CUdevice device = driver_.current_context_device();
  const auto found = std::find_if(infos_.begin(), infos_.end(),
                                  [&](const DeviceInfo& info) { return info.handle == device; });
  if (found == infos_.end()) no_such_device("cuCtxGetDevice", device, count());
  return *found;
}

ScopedContext::ScopedContext(const Driver& driver, const DeviceInfo& device)
    : driver_(driver), device_(device.handle) {
  if (is_current(driver, device_)) return;
  const CUcontext primary = driver.retain_primary_context(device_);
  try {
    driver.push_context(primary);
  } catch (const DriverError&) {
    driver.release_primary_context(device_);
    throw;
  }
  pushed_ = true;
}

ScopedContext::~ScopedContext() {
  if (!pushed_) return;
  driver_.pop_context();
  driver_.release_primary_context(device_);
}

}  // namespace lazyrope
