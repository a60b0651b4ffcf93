#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace lazyrope {

// Return the value of a 16-bit float that has these bits.
inline float from_bf16(std::uint16_t bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

inline float from_fp16(std::uint16_t bits) {
  const std::uint32_t magnitude = static_cast<std::uint32_t>(bits & 0x7fff) << 13;
  const bool finite = magnitude < 0x0f800000;
  const float value = finite ? std::ldexp(std::bit_cast<float>(magnitude), 112)
                             : std::bit_cast<float>(0x70000000 + magnitude);
  return bits >> 15 == 0 ? value : -value;
}

}  // namespace lazyrope
