#include "runtime/step/accessed_memory.h"

namespace lazyrope {

MemoryRange range_of(const char* name, const TensorView& tensor, bool is_written) {
  if (tensor.is_empty()) return {name, tensor.data, 0, is_written};
  const ByteRange range = byte_range(tensor);
  return {name, reinterpret_cast<const void*>(range.lowest),
          static_cast<std::size_t>(range.span) + 1, is_written};
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
  reads("k_scale", pool.key_scale).reads("v_scale", pool.value_scale);
  return reads("key_bias", pool.key_bias).reads("entry_lse", pool.entry_lse);
}

}  // namespace lazyrope
