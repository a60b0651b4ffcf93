// GPT-NeoX pairing: RoPE rotates column i together with column i + kRotaryDim / 2.
//
// A pairing divides the rotated columns into kUnits units of kPairs pairs. A unit has two runs of
// kPairs consecutive columns, a and b. run_a(u) and run_b(u) are their indices among all runs of a
// row. Pair i of unit u has frequency kPairs u + i. It consists of elements first(i) and second(i)
// of both runs: 0 to kPairs - 1 are in run a, the others in run b.
//
// If run_b(u) is run_a(u) + kRunDistance for all units, the address of run b follows from that of
// run a. If kRunDistance is a power of two, its bit must not be set in run_a(u). A pairing without
// a fixed distance has no kRunDistance. All members are constexpr.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

template <int kRotaryDim>
struct RopePairing {
  static_assert(kRotaryDim % 4 == 0);
  static constexpr int kPairs = kRotaryDim % 8 == 0 ? 4 : 2;
  static constexpr int kUnits = kRotaryDim / 2 / kPairs;
  static constexpr int kRunDistance = kUnits;
  LAZYROPE_DEVICE static constexpr int32 run_a(int32 unit) { return unit; }
  LAZYROPE_DEVICE static constexpr int32 run_b(int32 unit) { return unit + kRunDistance; }
  LAZYROPE_DEVICE static constexpr int first(int pair) { return pair; }
  LAZYROPE_DEVICE static constexpr int second(int pair) { return pair + kPairs; }
};

}  // namespace lazyrope
