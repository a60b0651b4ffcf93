#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>

#include "runtime/base/tensor.h"

namespace lazyrope {

class Device;
class DeviceBuffer;

// A contiguous tensor with memory of its own, on a GPU or, for the emulator, on the host: for
// programs that have no allocator; any other memory does as well. Copies share the memory.
class DeviceTensor {
 public:
  // Zeros. DriverError where there is no such GPU or too little memory; SpecError for a device or
  // an element type that kernels do not know.
  DeviceTensor(ElementType type, std::initializer_list<std::int64_t> shape, DeviceType device_type,
               int device = 0);
  DeviceTensor(ElementType type, std::initializer_list<std::int64_t> shape,
               std::shared_ptr<const Device> device);

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  std::size_t bytes() const;
  void fill_zero();  // waits

  // Copies all elements, and waits for that and for the work before it on the default stream.
  void copy_from_host(const void* values);
  void copy_to_host(void* values) const;

 private:
  TensorView view_;
  std::shared_ptr<const DeviceBuffer> memory_;
};

}  // namespace lazyrope
