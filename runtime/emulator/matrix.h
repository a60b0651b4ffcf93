#pragma once

#include <cstdint>
#include <span>

#include "templates/abi/emulator.h"

namespace lazyrope {

// What a lane gives to mma.m16n8k16, and where its results go.
struct MmaLane {
  float* d;         // [4]
  const uint32* a;  // [4]
  const uint32* b;  // [2]
};

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". Sums are
// made in double and rounded once: the hardware's own sums have a wider exponent than fp32, too.
void multiply_m16n8k16(EmulatedElement element, std::span<MmaLane* const> lanes);

float value_of(EmulatedElement element, std::uint16_t bits);

}  // namespace lazyrope
