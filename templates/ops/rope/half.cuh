// GPT-NeoX pairing: column i turns with column i + kRotaryDim / 2.
//
// A pairing divides the rotated columns into units of kPairs pairs, held by two runs of kPairs
// consecutive columns. Pair i of unit u has frequency kPairs u + i and consists of elements
// first(i) and second(i) of both runs (0 to kPairs - 1 in run a, the others in run b). Where run b
// always lies as many runs behind run a, kRunsApart says how many: that spares looking for it.
// Then, if that is a power of two, its bit is not set in run a's number. All are constexpr.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

template <int kRotaryDim>
struct RopePairing {
  static_assert(kRotaryDim % 4 == 0);
  static constexpr int kPairs = kRotaryDim % 8 == 0 ? 4 : 2;
  static constexpr int kUnits = kRotaryDim / 2 / kPairs;
  static constexpr int kRunsApart = kUnits;  // run a and run b
  LAZYROPE_DEVICE static constexpr int32 run_a(int32 unit) { return unit; }
  LAZYROPE_DEVICE static constexpr int32 run_b(int32 unit) { return unit + kRunsApart; }
  LAZYROPE_DEVICE static constexpr int first(int pair) { return pair; }
  LAZYROPE_DEVICE static constexpr int second(int pair) { return pair + kPairs; }
};

}  // namespace lazyrope
