// 8-bit elements of the KV pool (OCP 8-bit Floating Point Specification 1.0): narrowed from fp32,
// and widened to the 16-bit elements that products take.
#pragma once

#include "tile/element.cuh"

namespace lazyrope {

// Two pairs of 16-bit elements, widened from the four bytes of a register.
struct BytePairs {
  uint32 even;  // bytes 0 and 2
  uint32 odd;   // bytes 1 and 3
};

template <int kMantissaBits, int kExponentBias, uint32 kLargest>
struct Fp8 {
  // Widens four bytes to 16-bit elements, exactly. The bits of an 8-bit number are shifted to the
  // fields of the wider format. The result is the same number with a wrong exponent bias, even if
  // it is subnormal, and a multiplication corrects the bias. NaN and the infinities of E5M2 become
  // the finite numbers that the wider format has there.
  template <class Element>
  LAZYROPE_DEVICE static BytePairs widen(uint32 bytes) {
    return {widen_halves<Element>(prmt_b32(bytes, 0, 0xa280)),
            widen_halves<Element>(prmt_b32(bytes, 0, 0xb391))};
  }
  // Widens eight bytes and keeps their order.
  template <class Element>
  LAZYROPE_DEVICE static Chunk widen_in_order(uint32 low, uint32 high) {
    return {{widen_halves<Element>(prmt_b32(low, 0, 0x9180)),
             widen_halves<Element>(prmt_b32(low, 0, 0xb3a2)),
             widen_halves<Element>(prmt_b32(high, 0, 0x9180)),
             widen_halves<Element>(prmt_b32(high, 0, 0xb3a2))}};
  }

  // Rounds to nearest even. Numbers beyond the largest one become the largest one; NaN stays NaN.
  LAZYROPE_DEVICE static uint32 narrow(float x) {
    constexpr int kDropped = 23 - kMantissaBits;
    constexpr uint32 kBias = static_cast<uint32>(127 - kExponentBias);
    constexpr uint32 kLeastNormal = (kBias + 1) << 23;
    // If a number below the least normal number is added to this one, the low bits of the sum are
    // that number in units of the least subnormal number.
    constexpr uint32 kSubnormalBias = (kBias + static_cast<uint32>(kDropped) + 1) << 23;
    constexpr uint32 kMax = (kLargest + (kBias << kMantissaBits)) << kDropped;
    const uint32 bits = float_as_bits(x);
    const uint32 sign = bits >> 24 & 0x80u;
    const uint32 magnitude = smaller(bits & 0x7fffffffu, kMax);
    if (x != x) return 0x7fu;
    if (magnitude < kLeastNormal)
      return sign | (float_as_bits(bits_as_float(magnitude) + bits_as_float(kSubnormalBias)) -
                     kSubnormalBias);
    const uint32 half = (1u << (kDropped - 1)) - 1u + (magnitude >> kDropped & 1u);
    return sign | (((magnitude + half) >> kDropped) - (kBias << kMantissaBits));
  }

 private:
  // Widens the low bytes of both halves. The high byte of a half is the sign of its low byte, eight
  // times. The mask clears the bits that the shift moves from the lower half to the upper one.
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
