// Asynchronous copies of boxes of a tensor. PTX ISA 9.0, "Data Movement and Conversion
// Instructions: Tensor copy" (cp.async.bulk.tensor, tiled; sm_90 and later). A box lies in shared
// memory densely, its innermost dimension first, swizzled as the map says; what is outside the
// tensor is loaded as zero. Coordinates are elements, the innermost first.
#pragma once

#include "abi/tensor_map.h"
#include "isa/bulk_copy.cuh"

namespace lazyrope {

// Of a tensor of five dimensions. The barrier is told of all bytes of the box.
LAZYROPE_DEVICE void cp_async_bulk_tensor_load(SharedPtr to, const TensorMap& map,
                                               const int32 (&at)[5], SharedPtr barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to.address),
      "l"(&map), "r"(barrier.address), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
      : "memory");
}

// The same of what is not read again soon: the L2 cache evicts it before all else.
LAZYROPE_DEVICE void cp_async_bulk_tensor_load_evict_first(SharedPtr to, const TensorMap& map,
                                                           const int32 (&at)[5],
                                                           SharedPtr barrier) {
  asm volatile(
      "{\n\t.reg .b64 policy;\n\tcreatepolicy.fractional.L2::evict_first.b64 policy, 1.0;\n\t"
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%3, %4, %5, %6, %7}], [%2], policy;\n\t}" ::"r"(to.address),
      "l"(&map), "r"(barrier.address), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
      : "memory");
}

}  // namespace lazyrope
