// cp.async.bulk.tensor in host C++. The emulator checks what it checks for cp.async.bulk. It also
// checks that the map was made by Device::encode and has five dimensions, that swizzled rows have
// the swizzle's span, and that a box begins at a multiple of 16 bytes.
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
