#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/base/tensor.h"

namespace lazyrope {

// Returns a contiguous tensor that refers to `values`, which must outlive it.
inline TensorView ints(std::vector<int>& values) {
  return make_tensor(values.data(), ElementType::kInt32, {std::ssize(values)}, DeviceType::kCpu);
}

// A contiguous tensor of zeros in host memory, with the alignment of GPU memory.
class HostTensor {
 public:
  HostTensor(ElementType type, const std::vector<std::int64_t>& shape) {
    view_.type = type;
    view_.rank = static_cast<int>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t i = shape.size(); i-- > 0; stride *= shape[i]) {
      view_.shape[i] = shape[i];
      view_.strides[i] = stride;
    }
    constexpr std::size_t kMaxElementBytes = 4;
    memory_.resize(static_cast<std::size_t>(stride) * kMaxElementBytes / sizeof(Block) + 1);
    view_.data = memory_.data();
  }

  const TensorView& view() const { return view_; }

  template <class T>
  T* data() {
    return static_cast<T*>(view_.data);
  }

 private:
  struct alignas(256) Block {
    std::byte bytes[256] = {};
  };

  std::vector<Block> memory_;
  TensorView view_;
};

}  // namespace lazyrope
