#pragma once

#include <cstddef>
#include <memory>

#include "runtime/base/function_ref.h"
#include "runtime/driver/device.h"

namespace lazyrope {

// The device memory of a step, which the planner and the attend kernels write.
//
// The emulator ends a kernel early if it breaks a rule (KernelFault) or if the call is interrupted
// (check_interruption). The kernel then leaves partial results that a later launch would take for
// its own. So the memory is unusable until clear_if_broken(). Not thread-safe.
class StepMemory {
 public:
  // Allocates memory and fills it with zeros on the stream. Throws DriverError.
  StepMemory(std::shared_ptr<const Device> device, std::size_t bytes, Stream stream);

  const DeviceBuffer& buffer() const { return buffer_; }

  // Calls `launches`, which launches kernels that write to the memory. Throws SpecError if an
  // earlier kernel ended early, and what `launches` throws. SpecErrors and DriverErrors, but for
  // KernelFaults, come before a kernel has begun, so they leave the memory usable.
  void run(FunctionRef<void()> launches);

  // Throws SpecError if an earlier kernel ended early.
  void check_usable() const;

  // Fills the memory with zeros on the stream if a kernel ended early.
  void clear_if_broken(Stream stream);

 private:
  DeviceBuffer buffer_;
  bool is_broken_ = false;  // a kernel ended early
};

}  // namespace lazyrope
