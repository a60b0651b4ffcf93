// 8-bit elements of the KV pool (OCP 8-bit Floating Point Specification 1.0): made from fp32, and
// turned into the 16-bit elements that products take.
#pragma once

#include "tile/element.cuh"

namespace lazyrope {

// Two pairs of 16-bit elements out of the four bytes of a register.
struct BytePairs {
  uint32 even;  // bytes 0 and 2
  uint32 odd;   // bytes 1 and 3
};

template <int kMantissaBits, int kExponentBias, uint32 kLargest>
struct Fp8 {
  // As 16-bit elements: exact. The bits of an 8-bit number, moved to their places in a wider one,
  // are that number but for the exponent's bias, also where it is subnormal; a multiplication mends
  // that. NaN and the infinities of E5M2 become the numbers that their bits would be in a wider
  // format.
  template <class Element>
  LAZYROPE_DEVICE static BytePairs widen(uint32 bytes) {
    return {widen_halves<Element>(prmt_b32(bytes, 0, 0xa280)),
            widen_halves<Element>(prmt_b32(bytes, 0, 0xb391))};
  }
  // The same of eight bytes, in their order.
  template <class Element>
  LAZYROPE_DEVICE static Chunk widen_in_order(uint32 low, uint32 high) {
    return {{widen_halves<Element>(prmt_b32(low, 0, 0x9180)),
             widen_halves<Element>(prmt_b32(low, 0, 0xb3a2)),
             widen_halves<Element>(prmt_b32(high, 0, 0x9180)),
             widen_halves<Element>(prmt_b32(high, 0, 0xb3a2))}};
  }

  // To nearest even; to the largest number where that is exceeded; NaN stays NaN.
  LAZYROPE_DEVICE static uint32 narrow(float x) {
    constexpr int kDropped = 23 - kMantissaBits;
    constexpr uint32 kBias = static_cast<uint32>(127 - kExponentBias);
    constexpr uint32 kLeastNormal = (kBias + 1) << 23;
    // Added to a number below the least normal one, leaves its multiple of the least subnormal one
    // in the low bits.
    constexpr uint32 kSteps = (kBias + static_cast<uint32>(kDropped) + 1) << 23;
    constexpr uint32 kMax = (kLargest + (kBias << kMantissaBits)) << kDropped;
    const uint32 bits = float_as_bits(x);
    const uint32 sign = bits >> 24 & 0x80u;
    const uint32 magnitude = smaller(bits & 0x7fffffffu, kMax);
    if (x != x) return 0x7fu;
    if (magnitude < kLeastNormal)
      return sign | (float_as_bits(bits_as_float(magnitude) + bits_as_float(kSteps)) - kSteps);
    const uint32 half = (1u << (kDropped - 1)) - 1u + (magnitude >> kDropped & 1u);
    return sign | (((magnitude + half) >> kDropped) - (kBias << kMantissaBits));
  }

 private:
  // Of two bytes in whose upper ones their signs stand eight times. What the lower half shifts into
  // the upper one is masked.
  template <class Element>
  LAZYROPE_DEVICE static uint32 widen_halves(uint32 pair) {
    constexpr int kShift = Element::kMantissaBits - kMantissaBits;
    return rebias<Element>(pair * (1u << kShift) & (0x8000u | 0x7fu << kShift) * 0x00010001u);
  }

  template <class Element>
  LAZYROPE_DEVICE static uint32 rebias(uint32 pair) {
    constexpr int kPower = Element::kExponentBias - kExponentBias;
    if constexpr (kPower == 0) return pair;
    constexpr uint32 kFactor = static_cast<uint32>(kPower + Element::kExponentBias)
                               << Element::kMantissaBits;
    return Element::multiply_add(pair, kFactor * 0x00010001u, 0x80008000u);  // x + -0 is x
  }
};

using E4m3 = Fp8<3, 7, 0x7e>;   // up to 448, no infinities
using E5m2 = Fp8<2, 15, 0x7b>;  // up to 57344

}  // namespace lazyrope
