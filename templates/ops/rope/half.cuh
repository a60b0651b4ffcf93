// GPT-NeoX pairing: column i turns with column i + kRotaryDim / 2.
//
// A pairing divides the rotated columns into units of kPairs pairs, held by two runs of kPairs
// consecutive columns. Pair i of unit u has frequency kPairs u + i and consists of elements
// first(i) and second(i) of both runs (0 to kPairs - 1 in run a, the others in run b). Where run b
// always lies as many runs behind run a, kRunsApart says how many: that spares looking for it.
// Then, if that is a power of two, its bit is not set in run a's number.
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

  // The same in octets of pairs, whose runs are of eight columns, for products whose rows lanes
  // share as they share matrices of eight rows: lane t of a row has columns 2t and 2t + 1 of both
  // runs. Pair pair_of(t, i) of the octet is its part of product i: the pair's elements, together.
  static constexpr int kOctets = kRotaryDim % 16 == 0 ? kRotaryDim / 16 : 0;
  LAZYROPE_DEVICE static constexpr int32 octet_a(int32 octet) { return octet; }
  LAZYROPE_DEVICE static constexpr int32 octet_b(int32 octet) { return octet + kOctets; }
  LAZYROPE_DEVICE static constexpr int32 pair_of(int32 t, int i) { return 2 * t + i; }
  LAZYROPE_DEVICE static uint32 elements(int i, uint32 a, uint32 b) {
    return i == 0 ? (a & 0xffffu) | b << 16 : a >> 16 | (b & 0xffff0000u);
  }
  // What lies in run a and in run b of both products' pairs.
  LAZYROPE_DEVICE static FloatPair in_run_a(FloatPair p, FloatPair q) { return {p.low, q.low}; }
  LAZYROPE_DEVICE static FloatPair in_run_b(FloatPair p, FloatPair q) { return {p.high, q.high}; }
};

}  // namespace lazyrope
