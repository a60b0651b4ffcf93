#include "runtime/step/accessed_memory.h"

#include <algorithm>

namespace lazyrope {

MemoryRange range_of(const char* name, const TensorView& tensor, bool is_written) {
  if (tensor.elements() == 0) return {name, tensor.data, 0, is_written};
  std::int64_t first = 0;
  std::int64_t last = 0;
  for (int dim = 0; dim < tensor.rank; ++dim) {
    const auto i = static_cast<std::size_t>(dim);
    const std::int64_t span = (tensor.shape[i] - 1) * tensor.strides[i];
    first += std::min<std::int64_t>(span, 0);
    last += std::max<std::int64_t>(span, 0);
  }
  const int bytes = bytes_of(tensor.type);
  return {name, static_cast<const std::byte*>(tensor.data) + first * bytes,
          static_cast<std::size_t>((last - first + 1) * bytes), is_written};
}

AccessedMemory& AccessedMemory::add(const char* name, const TensorView& tensor, bool is_written) {
  ranges_.push_back(range_of(name, tensor, is_written));
  return *this;
}

AccessedMemory& AccessedMemory::reads(const char* name, const std::optional<TensorView>& tensor) {
  return tensor ? add(name, *tensor, false) : *this;
}

AccessedMemory& AccessedMemory::writes(const char* name, const std::optional<TensorView>& tensor) {
  return tensor ? add(name, *tensor, true) : *this;
}

AccessedMemory& AccessedMemory::writes(const char* name, const DeviceBuffer& buffer) {
  ranges_.push_back({name, buffer.data(), buffer.bytes(), true});
  return *this;
}

AccessedMemory& AccessedMemory::add_pool(const PoolTensors& pool, bool is_written) {
  add("k_pool", pool.keys, is_written);
  add("v_pool", pool.values, is_written);
  return reads("k_scale", pool.key_scale).reads("v_scale", pool.value_scale);
}

}  // namespace lazyrope
