// GPT-NeoX pairing: column i turns with column i + kRotaryDim / 2.
//
// A pairing divides the rotated columns into units of four pairs, held by two quads (four
// consecutive columns, 8 bytes) of a row. Pair i of unit u has frequency 4 u + i and consists of
// elements first(i) and second(i) of the eight (0 to 3 in quad a, 4 to 7 in quad b).
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

template <int kRotaryDim>
struct RopePairing {
  static_assert(kRotaryDim % 8 == 0);
  static constexpr int kUnits = kRotaryDim / 8;
  LAZYROPE_DEVICE static constexpr int32 quad_a(int32 unit) { return unit; }
  LAZYROPE_DEVICE static constexpr int32 quad_b(int32 unit) { return unit + kUnits; }
  LAZYROPE_DEVICE static constexpr int first(int pair) { return pair; }
  LAZYROPE_DEVICE static constexpr int second(int pair) { return pair + 4; }
};

}  // namespace lazyrope
