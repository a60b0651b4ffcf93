// Approximate functions, conversions, packed arithmetic and mma.m16n8k16. PTX ISA 9.0, "Floating
// Point Instructions", "Half Precision Floating Point Instructions", "Data Movement and Conversion
// Instructions" (prmt, cvt), "Matrix Fragments for mma.m16n8k16". Wrappers without a comment are
// the instruction that they are named after.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

LAZYROPE_DEVICE float ex2_approx_ftz_f32(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

LAZYROPE_DEVICE float lg2_approx_ftz_f32(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

LAZYROPE_DEVICE float rcp_approx_ftz_f32(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// The absolute error of sin.approx and cos.approx is at most 2^-20.5 for |x| <= pi.
LAZYROPE_DEVICE float sin_approx_f32(float x) {
  float y;
  asm("sin.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

LAZYROPE_DEVICE float cos_approx_f32(float x) {
  float y;
  asm("cos.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

LAZYROPE_DEVICE float max_f32(float a, float b) { return fmaxf(a, b); }
// Returns the maximum of the low halves and the maximum of the high halves, as unsigned numbers
// (max.u16x2).
LAZYROPE_DEVICE uint32 max_u16x2(uint32 a, uint32 b) { return __vmaxu2(a, b); }
// prmt selects four of eight bytes: a has bytes 0 to 3, b has bytes 4 to 7. Byte i of the result is
// byte n, where n is the i-th four-bit field of `selector`. For n >= 8 it is the sign of byte n -
// 8, in all eight bits.
LAZYROPE_DEVICE uint32 prmt_b32(uint32 a, uint32 b, uint32 selector) {
  uint32 y;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(selector));
  return y;
}
LAZYROPE_DEVICE float bits_as_float(uint32 bits) { return __uint_as_float(bits); }
LAZYROPE_DEVICE uint32 float_as_bits(float x) { return __float_as_uint(x); }
LAZYROPE_DEVICE float infinity_f32() { return __int_as_float(0x7f800000); }

// Rounds two floats to nearest even and packs them into one register, `low` in the low half.
LAZYROPE_DEVICE uint32 cvt_rn_bf16x2_f32(float low, float high) {
  uint32 y;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

LAZYROPE_DEVICE uint32 cvt_rn_f16x2_f32(float low, float high) {
  uint32 y;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
  return y;
}

// Unpacks two bf16 numbers: a shift and a mask, no cvt.
LAZYROPE_DEVICE FloatPair cvt_f32_bf16x2(uint32 x) {
  return {__uint_as_float(x << 16), __uint_as_float(x & 0xffff0000u)};
}

LAZYROPE_DEVICE FloatPair cvt_f32_f16x2(uint32 x) {
  FloatPair y;
  asm("{\n\t.reg .b16 low, high;\n\tmov.b32 {low, high}, %2;\n\tcvt.f32.f16 %0, low;\n\t"
      "cvt.f32.f16 %1, high;\n\t}"
      : "=f"(y.low), "=f"(y.high)
      : "r"(x));
  return y;
}

// fma.rn computes a x b + c for the low and the high halves. Subnormal numbers are not flushed.
LAZYROPE_DEVICE uint32 fma_rn_bf16x2(uint32 a, uint32 b, uint32 c) {
  uint32 y;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}

LAZYROPE_DEVICE uint32 fma_rn_f16x2(uint32 a, uint32 b, uint32 c) {
  uint32 y;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(y) : "r"(a), "r"(b), "r"(c));
  return y;
}

// mma.m16n8k16: d += a x b. The manual's figures say which elements a lane's registers hold.
LAZYROPE_DEVICE void mma_m16n8k16_f32_bf16(float (&d)[4], const uint32 (&a)[4], uint32 b0,
                                           uint32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

LAZYROPE_DEVICE void mma_m16n8k16_f32_f16(float (&d)[4], const uint32 (&a)[4], uint32 b0,
                                          uint32 b1) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

}  // namespace lazyrope
