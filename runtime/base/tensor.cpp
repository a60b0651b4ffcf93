#include "runtime/base/tensor.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

namespace lazyrope {
namespace {

std::string_view to_string(DeviceType type) {
  switch (type) {
    case DeviceType::kCpu:
      return "cpu";
    case DeviceType::kGpu:
      return "gpu";
    case DeviceType::kOther:
      break;
  }
  return "an unknown device";
}

std::span<const std::int64_t> first(const std::array<std::int64_t, TensorView::kMaxRank>& values,
                                    int count) {
  return std::span(values).first(static_cast<std::size_t>(count));
}

}  // namespace

std::string_view to_string(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
      return "bfloat16";
    case ElementType::kFp16:
      return "float16";
    case ElementType::kFp8E4m3:
      return "float8_e4m3fn";
    case ElementType::kFp8E5m2:
      return "float8_e5m2";
    case ElementType::kUint8:
      return "uint8";
    case ElementType::kFp32:
      return "float32";
    case ElementType::kInt32:
      return "int32";
    case ElementType::kInt64:
      return "int64";
    case ElementType::kFp64:
      return "float64";
    case ElementType::kOther:
      break;
  }
  return "an unknown dtype";
}

int bytes_of(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
    case ElementType::kFp16:
      return 2;
    case ElementType::kFp32:
    case ElementType::kInt32:
      return 4;
    case ElementType::kInt64:
    case ElementType::kFp64:
      return 8;
    case ElementType::kFp8E4m3:
    case ElementType::kFp8E5m2:
    case ElementType::kUint8:
    case ElementType::kOther:
      break;
  }
  return 1;
}

std::int64_t TensorView::elements() const {
  std::int64_t count = 1;
  for (const std::int64_t extent : first(shape, rank)) count *= extent;
  return count;
}

bool TensorView::is_empty() const {
  return std::ranges::find(first(shape, rank), 0) != first(shape, rank).end();
}

bool TensorView::is_contiguous() const {
  if (is_empty()) return true;
  std::int64_t expected = 1;
  for (int i = rank - 1; i >= 0; --i) {
    const auto at = static_cast<std::size_t>(i);
    if (shape[at] != 1 && strides[at] != expected) return false;
    expected *= shape[at];
  }
  return true;
}

ByteRange byte_range(const TensorView& tensor) {
  const auto data = reinterpret_cast<std::uintptr_t>(tensor.data);
  const std::int64_t size = bytes_of(tensor.type);
  ByteRange range = {data, size - 1};
  for (std::size_t i = 0; std::cmp_less(i, tensor.rank); ++i) {
    const std::int64_t last = tensor.shape[i] - 1;
    if (last == 0) continue;  // the stride is not used
    std::int64_t way = 0;     // to the last element of the dimension, in bytes
    if (__builtin_mul_overflow(tensor.strides[i], last, &way) ||
        __builtin_mul_overflow(way, size, &way) || way <= -ByteRange::kMaxSpan ||
        std::abs(way) >= ByteRange::kMaxSpan - range.span)
      return {data, ByteRange::kMaxSpan};
    if (way < 0) range.lowest += static_cast<std::uintptr_t>(way);
    range.span += std::abs(way);
  }
  return range;
}

std::string describe(const TensorView& tensor) {
  return fmt::format("{} [{}] with strides [{}] on {} {}", to_string(tensor.type),
                     fmt::join(first(tensor.shape, tensor.rank), ", "),
                     fmt::join(first(tensor.strides, tensor.rank), ", "),
                     to_string(tensor.device_type), tensor.device);
}

TensorView make_tensor(void* data, ElementType type, std::initializer_list<std::int64_t> shape,
                       DeviceType device_type, int device) {
  TensorView tensor;
  tensor.data = data;
  tensor.type = type;
  tensor.device_type = device_type;
  tensor.device = device;
  tensor.rank = static_cast<int>(shape.size());
  std::size_t at = 0;
  for (const std::int64_t extent : shape) tensor.shape[at++] = extent;
  std::int64_t stride = 1;
  for (int i = tensor.rank - 1; i >= 0; --i) {
    tensor.strides[static_cast<std::size_t>(i)] = stride;
    stride *= tensor.shape[static_cast<std::size_t>(i)];
  }
  return tensor;
}

}  // namespace lazyrope
