// Copies of boxes of a tensor, one after the other. The input begins with the words of a box, a
// multiple of 32, and the coordinates of each box.
#pragma once

#include "isa/mbarrier.cuh"
#include "isa/sync.cuh"
#include "isa/tensor_copy.cuh"
#include "tests/isa/witness/params.h"

namespace lazyrope {

inline constexpr int32 kBoxAt = 1024;  // of shared memory: a swizzle's pattern begins there

template <int kDims>
struct BoxCopies {
  static constexpr int32 kFirst = 1;  // coordinate, in the input

  LAZYROPE_DEVICE explicit BoxCopies(const WitnessParams& of)
      : params(of), words(static_cast<int32>(ld_global(of.input))) {}

  LAZYROPE_DEVICE SharedPtr box() const { return dynamic_shared_memory() + kBoxAt; }

  LAZYROPE_DEVICE void read(int32 (&at)[kDims], int32 copy) const {
    for (int32 i = 0; i < kDims; ++i)
      at[i] = static_cast<int32>(ld_global(params.input + kFirst + copy * kDims + i));
  }

  // The output: shared memory, box by box.
  template <class Copy>
  LAZYROPE_DEVICE void load(const Copy& copy_box) const {
    const SharedPtr barrier = dynamic_shared_memory();
    if (thread_index() == 0) {
      mbarrier_init(barrier, 1);
      fence_mbarrier_init_release_cluster();
    }
    bar_sync();
    for (int32 copy = 0; copy < params.count; ++copy) {
      if (thread_index() == 0) {
        int32 at[kDims];
        read(at, copy);
        mbarrier_arrive_expect_tx(barrier, static_cast<uint32>(4 * words));
        copy_box(box(), params.map, at, barrier);
      }
      while (!mbarrier_try_wait_parity(barrier, static_cast<uint32>(copy % 2))) {
      }
      for (int32 i = thread_index(); i < words; i += block_threads())
        st_global(params.output + copy * words + i, ld_shared<uint32>(box() + 4 * i));
      bar_sync();
    }
  }

  const WitnessParams& params;
  int32 words;
};

template <int kDims>
LAZYROPE_DEVICE void copy_boxes(const WitnessParams& params) {
  BoxCopies<kDims>(params).load(
      [](SharedPtr to, const TensorMap& map, const int32(&at)[kDims], SharedPtr barrier) {
        cp_async_bulk_tensor_load(to, map, at, barrier);
      });
}

LAZYROPE_DEVICE void witness(const WitnessParams& params) {
  switch (params.which) {
    case Case::kTensorLoad2:
      return copy_boxes<2>(params);
    case Case::kTensorLoad3:
      return copy_boxes<3>(params);
    case Case::kTensorLoad4:
      return copy_boxes<4>(params);
    case Case::kTensorLoad5:
      return copy_boxes<5>(params);
    default:
      return BoxCopies<5>(params).load(
          [](SharedPtr to, const TensorMap& map, const int32(&at)[5], SharedPtr barrier) {
            cp_async_bulk_tensor_load_evict_first(to, map, at, barrier);
          });
  }
}

}  // namespace lazyrope
