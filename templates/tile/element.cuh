// 16-bit element types: packing of two elements into a register, and arithmetic on such pairs.
#pragma once

#include "isa/math.cuh"

namespace lazyrope {

struct Bf16 {
  static constexpr int kMantissaBits = 7;
  static constexpr int kExponentBias = 127;
  LAZYROPE_DEVICE static uint32 pack(float low, float high) { return cvt_rn_bf16x2_f32(low, high); }
  LAZYROPE_DEVICE static FloatPair unpack(uint32 pair) { return cvt_f32_bf16x2(pair); }
  LAZYROPE_DEVICE static void mma(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
    mma_m16n8k16_f32_bf16(d, a, b0, b1);
  }
  LAZYROPE_DEVICE static uint32 multiply_add(uint32 a, uint32 b, uint32 c) {
    return fma_rn_bf16x2(a, b, c);
  }
};

struct Fp16 {
  static constexpr int kMantissaBits = 10;
  static constexpr int kExponentBias = 15;
  LAZYROPE_DEVICE static uint32 pack(float low, float high) { return cvt_rn_f16x2_f32(low, high); }
  LAZYROPE_DEVICE static FloatPair unpack(uint32 pair) { return cvt_f32_f16x2(pair); }
  LAZYROPE_DEVICE static void mma(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1) {
    mma_m16n8k16_f32_f16(d, a, b0, b1);
  }
  LAZYROPE_DEVICE static uint32 multiply_add(uint32 a, uint32 b, uint32 c) {
    return fma_rn_f16x2(a, b, c);
  }
};

inline constexpr int kElementBytes = 2;
inline constexpr int kChunkElements = 8;  // 16-bit elements of a Chunk

}  // namespace lazyrope
