// Conformance kernels for tensor copies: boxes of a tensor, one after the other. The input begins
// with the number of words of a box, a multiple of 32, and the coordinates of each box.
#pragma once

#include "isa/mbarrier.cuh"
#include "isa/sync.cuh"
#include "isa/tensor_copy.cuh"
#include "tests/isa/kernels/params.h"

namespace lazyrope {

inline constexpr int32 kBoxAt = 1024;  // byte of shared memory; the swizzle pattern begins there
inline constexpr int32 kDims = 5;

// The output is the content of shared memory after each box.
template <class Copy>
LAZYROPE_DEVICE void load_boxes(const ConformanceParams& params, const Copy& copy_box) {
  const int32 words = static_cast<int32>(ld_global(params.input));
  const SharedPtr barrier = dynamic_shared_memory();
  const SharedPtr box = dynamic_shared_memory() + kBoxAt;
  if (thread_index() == 0) {
    mbarrier_init(barrier, 1);
    fence_mbarrier_init_release_cluster();
  }
  bar_sync();
  for (int32 copy = 0; copy < params.count; ++copy) {
    if (thread_index() == 0) {
      int32 at[kDims];
      for (int32 i = 0; i < kDims; ++i)
        at[i] = static_cast<int32>(ld_global(params.input + 1 + copy * kDims + i));
      mbarrier_arrive_expect_tx(barrier, static_cast<uint32>(4 * words));
      copy_box(box, params.map, at, barrier);
    }
    while (!mbarrier_try_wait_parity(barrier, static_cast<uint32>(copy % 2))) {
    }
    for (int32 i = thread_index(); i < words; i += block_threads())
      st_global(params.output + copy * words + i, ld_shared<uint32>(box + 4 * i));
    bar_sync();
  }
}

LAZYROPE_DEVICE void conformance_kernel(const ConformanceParams& params) {
  const bool evict_first = params.which == Case::kTensorLoadEvictFirst;
  load_boxes(params,
             [=](SharedPtr to, const TensorMap& map, const int32(&at)[kDims], SharedPtr barrier) {
               if (evict_first)
                 cp_async_bulk_tensor_load_evict_first(to, map, at, barrier);
               else
                 cp_async_bulk_tensor_load(to, map, at, barrier);
             });
}

}  // namespace lazyrope
