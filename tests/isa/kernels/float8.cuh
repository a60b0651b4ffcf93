// Conformance kernels for elements of 8 bits. kToE4m3 converts `count` groups of four floats. The
// others multiply: their input is kImageWords of shared memory with both operands, in rows of 128
// bytes with a swizzle. The output is eight results of each thread, each followed by the same
// element of the product of magnitudes.
#pragma once

#include "isa/bulk_copy.cuh"
#include "isa/float8.cuh"
#include "isa/math.cuh"
#include "isa/sync.cuh"
#include "tests/isa/kernels/params.h"

namespace lazyrope {

inline constexpr int32 kImageWords = 6144;
inline constexpr int32 kProducts = 2;  // steps along K
inline constexpr int32 kStartB = 8192;
inline constexpr int32 kEach = 8;

LAZYROPE_DEVICE void put_image(const ConformanceParams& params, uint32 mask) {
  bar_sync();
  for (int32 i = thread_index(); i < kImageWords; i += block_threads())
    st_shared(dynamic_shared_memory() + 4 * i, ld_global(params.input + i) & mask);
  fence_proxy_async();
  bar_sync();
}

LAZYROPE_DEVICE SharedDescriptor described(int32 start, int32 product) {
  constexpr int32 kAtom = 1024;
  return shared_descriptor(dynamic_shared_memory() + start, 16, kAtom, Swizzle::k128B) +
         product * 32;
}

template <int kColumns, bool kFromRegisters>
LAZYROPE_DEVICE void multiply(const ConformanceParams& params, int32 magnitude) {
  Accumulator<kColumns> d;
  OperandA a[kProducts];
  for (int32 i = 0; i < kProducts; ++i) {
    for (int32 k = 0; k < 4; ++k)
      a[i][k] = ld_shared<uint32>(dynamic_shared_memory() +
                                  16 * (i * kWarpgroupThreads + thread_index()) + 4 * k);
    a[i].pin();
  }
  d.pin();
  wgmma_fence();
  if constexpr (kFromRegisters)
    wgmma_m64k32(d, a, {described(kStartB, 0), described(kStartB, 1)}, false);
  else
    wgmma_m64k32(d, {described(0, 0), described(0, 1)},
                 {described(kStartB, 0), described(kStartB, 1)}, false);
  wgmma_commit_group();
  wgmma_wait_group<0>();
  d.pin();
  constexpr int32 kStep = kColumns / 2 / kEach;
#pragma unroll
  for (int32 i = 0; i < kColumns / 2; ++i)
    if (i % kStep == thread_index() % kStep)
      st_global(params.output + 2 * (thread_index() * kEach + i / kStep) + magnitude,
                float_as_bits(d[i]));
}

// Multiplies the operands, then their magnitudes.
template <int kColumns, bool kFromRegisters>
LAZYROPE_DEVICE void both(const ConformanceParams& params) {
  for (int32 magnitude = 0; magnitude < 2; ++magnitude) {
    put_image(params, magnitude == 1 ? 0x7f7f7f7fu : 0xffffffffu);
    multiply<kColumns, kFromRegisters>(params, magnitude);
  }
}

LAZYROPE_DEVICE void convert(const ConformanceParams& params) {
  for (int32 i = thread_index(); i < params.count; i += block_threads()) {
    const auto number = [&](int32 k) { return bits_as_float(ld_global(params.input + 4 * i + k)); };
    st_global(params.output + i,
              cvt_rn_satfinite_e4m3x2_f32(number(0), number(1), number(2), number(3)));
  }
}

LAZYROPE_DEVICE void conformance_kernel(const ConformanceParams& params) {
  switch (params.which) {
    case Case::kToE4m3:
      return convert(params);
    case Case::kFloat8Registers64:
      return both<64, true>(params);
    case Case::kFloat8Registers96:
      return both<96, true>(params);
    case Case::kFloat8Registers128:
      return both<128, true>(params);
    default:
      return both<128, false>(params);
  }
}

}  // namespace lazyrope
