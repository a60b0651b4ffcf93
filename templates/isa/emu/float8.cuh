// Elements of 8 bits (e4m3) in host C++: conversion and wgmma.mma_async.m64nNk32.
#pragma once

#include "isa/math.cuh"
#include "isa/wgmma.cuh"

namespace lazyrope {

inline uint32 e4m3_bits(float x) {
  const uint32 sign = float_as_bits(x) >> 24 & 0x80u;
  const float magnitude = bits_as_float(float_as_bits(x) & 0x7fffffffu);
  if (x != x) return 0x7fu;
  if (magnitude >= 448.0f) return sign | 0x7eu;
  constexpr float kLeastNormal = 0.015625f;  // 2^-6
  if (magnitude < kLeastNormal)  // in units of 2^-9; 8 units are the least normal number
    return sign | static_cast<uint32>(__builtin_rintf(magnitude * 512.0f));
  const uint32 bits = float_as_bits(magnitude);
  const uint32 rounded = bits + 0x7ffffu + (bits >> 20 & 1);
  const uint32 narrow = (rounded >> 20) - (120u << 3);
  return sign | (narrow > 0x7eu ? 0x7eu : narrow);
}

inline uint32 cvt_rn_satfinite_e4m3x2_f32(float a, float b, float c, float d) {
  return e4m3_bits(a) | e4m3_bits(b) << 8 | e4m3_bits(c) << 16 | e4m3_bits(d) << 24;
}

template <int kColumns, int kSteps>
inline void wgmma_m64k32(Accumulator<kColumns>& d, const SharedDescriptor (&a)[kSteps],
                         const SharedDescriptor (&b)[kSteps], bool accumulate, Site site = here()) {
  static_assert(kIsWgmmaShape<kColumns>);
  for (int i = 0; i < kSteps; ++i)
    emulator->wgmma({EmulatedElement::kE4m3, kColumns, accumulate || i > 0, false, false, a[i].bits,
                     b[i].bits, d.data(), nullptr, d.registers(), nullptr},
                    site);
}
template <int kColumns, int kSteps>
inline void wgmma_m64k32(Accumulator<kColumns>& d, const OperandA (&a)[kSteps],
                         const SharedDescriptor (&b)[kSteps], bool accumulate, Site site = here()) {
  static_assert(kIsWgmmaShape<kColumns>);
  for (int i = 0; i < kSteps; ++i)
    emulator->wgmma({EmulatedElement::kE4m3, kColumns, accumulate || i > 0, false, false, 0,
                     b[i].bits, d.data(), a[i].data(), d.registers(), a[i].registers()},
                    site);
}

}  // namespace lazyrope
