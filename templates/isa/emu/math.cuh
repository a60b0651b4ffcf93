// Approximate functions, conversions, and the matrix product, in host C++.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

inline float bits_as_float(uint32 bits) { return __builtin_bit_cast(float, bits); }
inline uint32 float_as_bits(float x) { return __builtin_bit_cast(uint32, x); }
inline float infinity_f32() { return __builtin_inff(); }

inline float ex2_approx_ftz_f32(float x) { return __builtin_exp2f(x); }
inline float lg2_approx_ftz_f32(float x) { return __builtin_log2f(x); }
inline float rcp_approx_ftz_f32(float x) { return 1.0f / x; }
inline float sin_approx_f32(float x) { return __builtin_sinf(x); }
inline float cos_approx_f32(float x) { return __builtin_cosf(x); }
inline float max_f32(float a, float b) { return __builtin_fmaxf(a, b); }

inline uint32 bf16_bits(float x) {
  const uint32 bits = float_as_bits(x);
  if (x != x) return 0x7fff;
  return (bits + 0x7fff + (bits >> 16 & 1)) >> 16;
}

inline uint32 cvt_rn_bf16x2_f32(float low, float high) {
  return bf16_bits(low) | bf16_bits(high) << 16;
}
inline FloatPair cvt_f32_bf16x2(uint32 x) {
  return {bits_as_float(x << 16), bits_as_float(x & 0xffff0000u)};
}

inline uint32 f16_bits(float x) { return __builtin_bit_cast(uint16, static_cast<_Float16>(x)); }
inline float f16_value(uint32 bits) {
  return static_cast<float>(__builtin_bit_cast(_Float16, static_cast<uint16>(bits)));
}
inline uint32 cvt_rn_f16x2_f32(float low, float high) {
  return f16_bits(low) | f16_bits(high) << 16;
}
inline FloatPair cvt_f32_f16x2(uint32 x) { return {f16_value(x & 0xffff), f16_value(x >> 16)}; }

// Rounded to fp32 first, which is exact where c is zero.
inline uint32 fma_rn_bf16x2(uint32 a, uint32 b, uint32 c) {
  const FloatPair x = cvt_f32_bf16x2(a), y = cvt_f32_bf16x2(b), z = cvt_f32_bf16x2(c);
  return cvt_rn_bf16x2_f32(x.low * y.low + z.low, x.high * y.high + z.high);
}
inline uint32 fma_rn_f16x2(uint32 a, uint32 b, uint32 c) {
  const FloatPair x = cvt_f32_f16x2(a), y = cvt_f32_f16x2(b), z = cvt_f32_f16x2(c);
  return cvt_rn_f16x2_f32(x.low * y.low + z.low, x.high * y.high + z.high);
}

inline void mma_m16n8k16_f32_bf16(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1,
                                  Site site = here()) {
  const uint32 b[2] = {b0, b1};
  emulator->mma_m16n8k16(EmulatedElement::kBf16, d, a, b, site);
}
inline void mma_m16n8k16_f32_f16(float (&d)[4], const uint32 (&a)[4], uint32 b0, uint32 b1,
                                 Site site = here()) {
  const uint32 b[2] = {b0, b1};
  emulator->mma_m16n8k16(EmulatedElement::kFp16, d, a, b, site);
}

}  // namespace lazyrope
