// Conformance kernels for ldmatrix and mma. The warps share `count` loads, or products.
#pragma once

#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "tests/isa/kernels/params.h"

namespace lazyrope {

// The input is kImageWords for shared memory, then for each load the byte offsets that the 32 lanes
// pass. The output is the four registers of each lane.
inline constexpr int32 kImageWords = 1024;

LAZYROPE_DEVICE void load_matrices(const ConformanceParams& params) {
  const SharedPtr image = dynamic_shared_memory();
  for (int32 i = thread_index(); i < kImageWords; i += block_threads())
    st_shared(image + 4 * i, ld_global(params.input + i));
  bar_sync();
  for (int32 load = warp_index(); load < params.count; load += block_threads() / kWarpThreads) {
    const int32 at = load * kWarpThreads + lane_index();
    const SharedPtr row = image + static_cast<int32>(ld_global(params.input + kImageWords + at));
    uint32 r[4];
    if (params.which == Case::kLdmatrix)
      ldmatrix_x4(r, row);
    else
      ldmatrix_x4_trans(r, row);
    for (int32 i = 0; i < 4; ++i) st_global(params.output + 4 * at + i, r[i]);
  }
}

// The fragments of one lane: 4 registers of A, 2 of B, 4 of C.
struct Operands {
  uint32 a[4];
  uint32 b[2];
  float c[4];
};

LAZYROPE_DEVICE Operands operands_at(const uint32* words) {
  Operands from;
  for (int32 i = 0; i < 4; ++i) from.a[i] = ld_global(words + i);
  for (int32 i = 0; i < 2; ++i) from.b[i] = ld_global(words + 4 + i);
  for (int32 i = 0; i < 4; ++i) from.c[i] = bits_as_float(ld_global(words + 6 + i));
  return from;
}

LAZYROPE_DEVICE Operands magnitudes(const Operands& from) {
  Operands to;
  for (int32 i = 0; i < 4; ++i) to.a[i] = from.a[i] & 0x7fff7fffu;
  for (int32 i = 0; i < 2; ++i) to.b[i] = from.b[i] & 0x7fff7fffu;
  for (int32 i = 0; i < 4; ++i) to.c[i] = bits_as_float(float_as_bits(from.c[i]) & 0x7fffffffu);
  return to;
}

LAZYROPE_DEVICE void multiply(Case which, Operands& x) {
  if (which == Case::kMmaBf16)
    mma_m16n8k16_f32_bf16(x.c, x.a, x.b[0], x.b[1]);
  else
    mma_m16n8k16_f32_f16(x.c, x.a, x.b[0], x.b[1]);
}

// The input is the operands of each lane. The output is the four elements of D of each lane, each
// followed by the same element for the operands' magnitudes, which bounds its error.
LAZYROPE_DEVICE void multiply_matrices(const ConformanceParams& params) {
  constexpr int32 kWords = 10;
  for (int32 i = warp_index(); i < params.count; i += block_threads() / kWarpThreads) {
    const int32 at = i * kWarpThreads + lane_index();
    Operands x = operands_at(params.input + kWords * at);
    Operands y = magnitudes(x);
    multiply(params.which, x);
    multiply(params.which, y);
    for (int32 j = 0; j < 4; ++j) {
      st_global(params.output + 8 * at + 2 * j, float_as_bits(x.c[j]));
      st_global(params.output + 8 * at + 2 * j + 1, float_as_bits(y.c[j]));
    }
  }
}

LAZYROPE_DEVICE void conformance_kernel(const ConformanceParams& params) {
  if (params.which == Case::kLdmatrix || params.which == Case::kLdmatrixTrans)
    load_matrices(params);
  else
    multiply_matrices(params);
}

}  // namespace lazyrope
