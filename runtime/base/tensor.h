#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace lazyrope {

// The element types of tensors. Kernels take those up to kInt64; the rest are named in error
// messages only.
enum class ElementType {
  kBf16,
  kFp16,
  kFp8E4m3,
  kFp8E5m2,
  kUint8,
  kFp32,
  kInt32,
  kInt64,
  kFp64,
  kOther
};
enum class DeviceType { kCpu, kGpu, kOther };

std::string_view to_string(ElementType type);

// Returns the bytes of an element, 1 for kOther.
int bytes_of(ElementType type);

// A view of a tensor that the caller owns. Strides are in elements. Plain data without locks.
struct TensorView {
  static constexpr int kMaxRank = 8;

  void* data = nullptr;
  DeviceType device_type = DeviceType::kCpu;
  int device = 0;  // ordinal
  ElementType type = ElementType::kOther;
  int rank = 0;
  std::array<std::int64_t, kMaxRank> shape{};
  std::array<std::int64_t, kMaxRank> strides{};

  std::int64_t elements() const;
  bool is_empty() const;
  // Returns true if the elements are contiguous in row-major order.
  bool is_contiguous() const;
};

// The bytes from a tensor's lowest to its highest. The distance of these two is kMaxSpan if it is
// longer, or if the tensor's strides give it no address.
struct ByteRange {
  static constexpr std::int64_t kMaxSpan = std::int64_t{1} << 61;  // the sum of two has 64 bits

  std::uintptr_t lowest = 0;
  std::int64_t span = 0;
};

// Returns the range of a tensor that is not empty.
ByteRange byte_range(const TensorView& tensor);

// Returns a text such as "bfloat16 [64, 32, 128] with strides [4096, 128, 1] on gpu 0".
std::string describe(const TensorView& tensor);

// Returns a contiguous tensor over memory that the caller owns.
TensorView make_tensor(void* data, ElementType type, std::initializer_list<std::int64_t> shape,
                       DeviceType device_type, int device = 0);

}  // namespace lazyrope
