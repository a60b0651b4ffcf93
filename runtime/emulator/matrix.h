#pragma once

#include <cstdint>
#include <span>

#include "templates/abi/emulator.h"

namespace lazyrope {

// The operands and the results of one lane of mma.m16n8k16.
struct MmaLane {
  float* d;         // [4]
  const uint32* a;  // [4]
  const uint32* b;  // [2]
};

// Computes D = A B + D for a warp, with fragments as PTX ISA defines them ("Matrix Fragments for
// mma.m16n8k16 with floating point type"). Sums are made in double and rounded once: the hardware's
// own sums also have a wider exponent than fp32.
void multiply_m16n8k16(EmulatedElement element, std::span<MmaLane* const> lanes);

// Returns the value of a bf16, fp16 or e4m3 number.
float value_of(EmulatedElement element, std::uint16_t bits);

// Returns the bytes of an element.
constexpr int bytes_of(EmulatedElement element) {
  return element == EmulatedElement::kE4m3 ? 1 : 2;
}

}  // namespace lazyrope
