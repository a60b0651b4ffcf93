#include "runtime/reach.h"

namespace lazyrope {

Reach& Reach::add(const char* name, const TensorView& tensor, bool is_written) {
  ranges_.push_back(
      {name, tensor.data, static_cast<std::size_t>(tensor.extent_bytes()), is_written});
  return *this;
}

Reach& Reach::reads(const char* name, const std::optional<TensorView>& tensor) {
  return tensor ? add(name, *tensor, false) : *this;
}

Reach& Reach::writes(const char* name, const std::optional<TensorView>& tensor) {
  return tensor ? add(name, *tensor, true) : *this;
}

Reach& Reach::writes(const char* name, const DeviceBuffer& buffer) {
  ranges_.push_back({name, buffer.data(), buffer.bytes(), true});
  return *this;
}

Reach& Reach::pool(const PoolTensors& pool, bool is_written) {
  add("k_pool", pool.keys, is_written);
  add("v_pool", pool.values, is_written);
  return reads("k_scale", pool.key_scale).reads("v_scale", pool.value_scale);
}

}  // namespace lazyrope
