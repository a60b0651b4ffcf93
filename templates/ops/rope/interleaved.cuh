// GPT-J pairing: RoPE rotates column 2i together with column 2i + 1. Units and runs are as in
// ops/rope/half.cuh.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

template <int kRotaryDim>
struct RopePairing {
  static_assert(kRotaryDim % 4 == 0);
  static constexpr int kPairs = kRotaryDim % 8 == 0 ? 4 : 2;
  static constexpr int kUnits = kRotaryDim / 2 / kPairs;
  static constexpr int kRunDistance = 1;
  LAZYROPE_DEVICE static constexpr int32 run_a(int32 unit) { return 2 * unit; }
  LAZYROPE_DEVICE static constexpr int32 run_b(int32 unit) { return 2 * unit + kRunDistance; }
  LAZYROPE_DEVICE static constexpr int first(int pair) { return 2 * pair; }
  LAZYROPE_DEVICE static constexpr int second(int pair) { return 2 * pair + 1; }
};

}  // namespace lazyrope
