// GPT-NeoX pairing: RoPE rotates column i together with column i + kRotaryDim / 2.
//
// A pairing divides the rotated columns into units of kPairs pairs. A unit's columns are two runs
// of kPairs consecutive columns, a and b. Pair i of unit u has frequency kPairs u + i. It consists
// of elements first(i) and second(i) of both runs: 0 to kPairs - 1 are in run a, the others in run
// b. If run b always has the number of run a plus kRunsApart, its address follows from run a's. If
// kRunsApart is a power of two, its bit is not set in run a's number. All members are constexpr.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

template <int kRotaryDim>
struct RopePairing {
  static_assert(kRotaryDim % 4 == 0);
  static constexpr int kPairs = kRotaryDim % 8 == 0 ? 4 : 2;
  static constexpr int kUnits = kRotaryDim / 2 / kPairs;
  static constexpr int kRunsApart = kUnits;  // from run a to run b
  LAZYROPE_DEVICE static constexpr int32 run_a(int32 unit) { return unit; }
  LAZYROPE_DEVICE static constexpr int32 run_b(int32 unit) { return unit + kRunsApart; }
  LAZYROPE_DEVICE static constexpr int first(int pair) { return pair; }
  LAZYROPE_DEVICE static constexpr int second(int pair) { return pair + kPairs; }
};

}  // namespace lazyrope
