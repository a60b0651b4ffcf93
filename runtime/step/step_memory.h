#pragma once

#include <cstddef>
#include <memory>

#include "runtime/base/function_ref.h"
#include "runtime/driver/device.h"

namespace lazyrope {

// The device memory of a step, which the planner and the attend kernels write.
//
// The emulator stops a kernel that breaks a rule and throws a KernelFault. The kernel then leaves
// partial results that a later launch would take for its own. So the memory is unusable until
// clear_after_fault(). Not thread-safe.
class StepMemory {
 public:
  // Allocates memory and fills it with zeros on the stream. Throws DriverError.
  StepMemory(std::shared_ptr<const Device> device, std::size_t bytes, Stream stream);

  const DeviceBuffer& buffer() const { return buffer_; }

  // Calls `launches`, which launches kernels that write to the memory. Throws SpecError if an
  // earlier KernelFault has left the memory unusable, and what `launches` throws. Only a
  // KernelFault makes the memory unusable: other exceptions come before a kernel has begun.
  void run(FunctionRef<void()> launches);

  // Fills the memory with zeros on the stream if a KernelFault has left it unusable.
  void clear_after_fault(Stream stream);

 private:
  DeviceBuffer buffer_;
  bool has_faulted_ = false;  // a KernelFault has left the memory unusable
};

}  // namespace lazyrope
