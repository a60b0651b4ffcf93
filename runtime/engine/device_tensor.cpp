#include "runtime/engine/device_tensor.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "codegen/error.h"
#include "runtime/driver/device.h"
#include "runtime/engine/devices.h"

namespace lazyrope {
namespace {

std::size_t element_bytes(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
    case ElementType::kFp16:
      return 2;
    case ElementType::kFp8E4m3:
    case ElementType::kFp8E5m2:
    case ElementType::kUint8:
      return 1;
    case ElementType::kFp32:
    case ElementType::kInt32:
      return 4;
    default:
      throw SpecError(
          fmt::format("a tensor of {}; kernels take bfloat16, float16, float8, float32 and int32",
                      to_string(type)));
  }
}

}  // namespace

DeviceTensor::DeviceTensor(ElementType type, std::initializer_list<std::int64_t> shape,
                           DeviceType device_type, int device)
    : DeviceTensor(
          type, shape,
          device_of("the tensor", make_tensor(nullptr, type, shape, device_type, device))) {}

DeviceTensor::DeviceTensor(ElementType type, std::initializer_list<std::int64_t> shape,
                           std::shared_ptr<const Device> device)
    : view_(make_tensor(nullptr, type, shape, device->id().type, device->id().ordinal)) {
  const std::size_t size = std::max(bytes(), std::size_t{1});  // drivers refuse 0 bytes
  memory_ = std::make_shared<DeviceBuffer>(std::move(device), size);
  view_.data = memory_->data();
  fill_zero();
}

std::size_t DeviceTensor::bytes() const {
  return static_cast<std::size_t>(view_.elements()) * element_bytes(view_.type);
}

// The copy of one byte waits for the fill, so that every stream sees the zeros.
void DeviceTensor::fill_zero() {
  memory_->device().fill_zero(view_.data, memory_->bytes(), nullptr);
  std::byte first{};
  memory_->device().copy_to_host(&first, view_.data, 1, nullptr);
}

void DeviceTensor::copy_from_host(const void* values) {
  memory_->device().copy_from_host(view_.data, values, bytes(), nullptr);
}

void DeviceTensor::copy_to_host(void* values) const {
  memory_->device().copy_to_host(values, view_.data, bytes(), nullptr);
}

}  // namespace lazyrope
