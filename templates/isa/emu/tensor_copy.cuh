// cp.async.bulk.tensor in host C++. In addition to what bulk_copy.cuh lists, the emulator refuses:
// - a map that Device::encode has not made, or that has not five dimensions;
// - a swizzled box whose rows are not as long as the swizzle's span;
// - a box that does not begin at a multiple of 16 bytes.
#pragma once

#include "abi/tensor_map.h"
#include "isa/bulk_copy.cuh"

namespace lazyrope {

inline void cp_async_bulk_tensor_load(SharedPtr to, const TensorMap& map, const int32 (&at)[5],
                                      SharedPtr barrier, Site site = here()) {
  emulator->cp_async_bulk_tensor_load(to.address, map, at, barrier.address, site);
}
inline void cp_async_bulk_tensor_load_evict_first(SharedPtr to, const TensorMap& map,
                                                  const int32 (&at)[5], SharedPtr barrier,
                                                  Site site = here()) {
  cp_async_bulk_tensor_load(to, map, at, barrier, site);
}

}  // namespace lazyrope
