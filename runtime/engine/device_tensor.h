#pragma once

#include <cstddef>
#include <initializer_list>
#include <memory>

#include "runtime/base/tensor.h"

namespace lazyrope {

class Device;
class DeviceBuffer;

// A contiguous tensor that owns its memory, on a GPU or, for the emulator, on the host. It is for
// programs without an allocator of their own: lazyrope takes tensors in any memory. Copies share
// the memory. No lock guards the elements.
class DeviceTensor {
 public:
  // Allocates zeros. Throws DriverError if there is no such GPU or too little memory, and SpecError
  // for a device or an element type that kernels do not take.
  DeviceTensor(ElementType type, std::initializer_list<std::int64_t> shape, DeviceType device_type,
               int device = 0);
  DeviceTensor(ElementType type, std::initializer_list<std::int64_t> shape,
               std::shared_ptr<const Device> device);

  const TensorView& view() const { return view_; }
  operator const TensorView&() const { return view_; }
  std::size_t bytes() const;
  void fill_zero();  // waits until the zeros are written

  // Copies all elements. Waits for the copy, and for earlier work on the default stream.
  void copy_from_host(const void* values);
  void copy_to_host(void* values) const;

 private:
  TensorView view_;
  std::shared_ptr<const DeviceBuffer> memory_;
};

}  // namespace lazyrope
