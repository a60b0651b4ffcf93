// TMA copies of boxes of a tensor: cp.async.bulk.tensor in tile mode. PTX ISA 9.0, "Data Movement
// and Conversion Instructions: Tensor copy" (sm_90 and later). In shared memory a box is dense, its
// innermost dimension first, and swizzled as the map says. Elements outside the tensor are loaded
// as zero. Coordinates count elements, the innermost dimension first.
#pragma once

#include "abi/tensor_map.h"
#include "isa/bulk_copy.cuh"

namespace lazyrope {

// Loads a box of a five-dimensional tensor. The copy counts down the bytes of the whole box at
// `barrier`, including those outside the tensor.
LAZYROPE_DEVICE void cp_async_bulk_tensor_load(SharedPtr to, const TensorMap& map,
                                               const int32 (&at)[5], SharedPtr barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.tile.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%3, %4, %5, %6, %7}], [%2];" ::"r"(to.address),
      "l"(&map), "r"(barrier.address), "r"(at[0]), "r"(at[1]), "r"(at[2]), "r"(at[3]), "r"(at[4])
      : "memory");
}

// Does the same for data that is not read again soon: L2 evicts it first (createpolicy
// evict_first).
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
