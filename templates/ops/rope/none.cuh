// No rotation: the pairing has no units.
#pragma once

#include "isa/launch.cuh"

namespace lazyrope {

template <int kRotaryDim>
struct RopePairing {
  static constexpr int kPairs = 4;
  static constexpr int kUnits = 0;
  LAZYROPE_DEVICE static constexpr int32 run_a(int32) { return 0; }
  LAZYROPE_DEVICE static constexpr int32 run_b(int32) { return 0; }
  LAZYROPE_DEVICE static constexpr int first(int) { return 0; }
  LAZYROPE_DEVICE static constexpr int second(int) { return 0; }
};

}  // namespace lazyrope
