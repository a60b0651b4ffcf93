// Approximate functions, conversions, packed arithmetic and mma.m16n8k16 in host C++. Approximate
// functions are those of the C++ library, and 1 / x, so their last bits may differ from those of a
// GPU. The emulator checks that all lanes of a warp execute an
// mma together.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

inline float bits_as_float(uint32 bits) { return __builtin_bit_cast(float, bits); }
inline uint32 float_as_bits(float x) { return __builtin_bit_cast(uint32, x); }
inline float infinity_f32() { return __builtin_inff(); }

// Applies ".ftz": subnormal numbers become zeros of their sign.
inline float flushed(float x) {
  const uint32 bits = float_as_bits(x);
  return (bits & 0x7f800000u) == 0 ? bits_as_float(bits & 0x80000000u) : x;
}

inline float ex2_approx_ftz_f32(float x) { return flushed(__builtin_exp2f(flushed(x))); }
inline float lg2_approx_ftz_f32(float x) { return __builtin_log2f(flushed(x)); }
inline float rcp_approx_ftz_f32(float x) { return flushed(1.0f / flushed(x)); }
inline float sin_approx_f32(float x) { return __builtin_sinf(x); }
inline float cos_approx_f32(float x) { return __builtin_cosf(x); }

// Returns the other number if one is NaN, as max.f32 does. +0 is greater than -0.
inline float max_f32(float a, float b) {
  if (a != a) return b != b ? bits_as_float(0x7fffffffu) : b;
  if (b != b) return a;
  if (a == b) return bits_as_float(float_as_bits(a) & float_as_bits(b));
  return a > b ? a : b;
}

inline uint32 max_u16x2(uint32 a, uint32 b) {
  const uint32 low = (a & 0xffffu) > (b & 0xffffu) ? a : b;
  const uint32 high = a >> 16 > b >> 16 ? a : b;
  return (low & 0xffffu) | (high & 0xffff0000u);
}

inline uint32 prmt_b32(uint32 a, uint32 b, uint32 selector) {
  const uint64 bytes = a | static_cast<uint64>(b) << 32;
  uint32 y = 0;
  for (int32 i = 0; i < 4; ++i) {
    const uint32 named = selector >> (4 * i) & 0xf;
    const auto byte = static_cast<uint32>(bytes >> (8 * (named % 8)) & 0xff);
    y |= (named < 8 ? byte : (byte >> 7) * 0xff) << (8 * i);
  }
  return y;
}

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

// Every NaN becomes the canonical one, as in all conversions to 16 bits.
inline uint32 f16_bits(float x) {
  if (x != x) return 0x7fff;
  return __builtin_bit_cast(uint16, static_cast<_Float16>(x));
}
inline float f16_value(uint32 bits) {
  const float x = static_cast<float>(__builtin_bit_cast(_Float16, static_cast<uint16>(bits)));
  return x != x ? bits_as_float(0x7fffffffu) : x;
}
inline uint32 cvt_rn_f16x2_f32(float low, float high) {
  return f16_bits(low) | f16_bits(high) << 16;
}
inline FloatPair cvt_f32_f16x2(uint32 x) { return {f16_value(x & 0xffff), f16_value(x >> 16)}; }

// Returns a b + c, rounded to odd: the last bit of an inexact result is 1. A second rounding to 16
// bits is then correct. The product a b is exact in a double.
inline float fma_to_odd(float a, float b, float c) {
  const double product = static_cast<double>(a) * static_cast<double>(b);
  const double sum = product + static_cast<double>(c);
  const float near = static_cast<float>(sum);
  if (sum - sum != 0.0) return near;  // infinity or NaN
  // `lost` is the rounding error of the sum in double, `left` that of its conversion to float. The
  // exact result is near + left + lost. The sign of `left`, or of `lost` if `left` is zero, tells
  // on which side of `near` it is.
  const double other = sum - product;
  const double lost = (product - (sum - other)) + (static_cast<double>(c) - other);
  const double left = sum - static_cast<double>(near);
  const double rest = left != 0.0 ? left : lost;
  if (rest == 0.0) return near;
  const uint32 bits = float_as_bits(near);
  const bool is_beyond = (rest < 0.0) != ((bits & 0x80000000u) != 0);
  return bits_as_float((is_beyond ? bits - 1 : bits) | 1u);
}

inline uint32 fma_rn_bf16x2(uint32 a, uint32 b, uint32 c) {
  const FloatPair x = cvt_f32_bf16x2(a), y = cvt_f32_bf16x2(b), z = cvt_f32_bf16x2(c);
  return cvt_rn_bf16x2_f32(fma_to_odd(x.low, y.low, z.low), fma_to_odd(x.high, y.high, z.high));
}
inline uint32 fma_rn_f16x2(uint32 a, uint32 b, uint32 c) {
  const FloatPair x = cvt_f32_f16x2(a), y = cvt_f32_f16x2(b), z = cvt_f32_f16x2(c);
  return cvt_rn_f16x2_f32(fma_to_odd(x.low, y.low, z.low), fma_to_odd(x.high, y.high, z.high));
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
