// Softmax weights have a range (ops/softmax.cuh). A product says which one it takes.
#pragma once

namespace lazyrope {

// This is the range of weights of 16 bits or more. The weight of a score that is equal to the
// maximum is 2^kLift. The maximum is raised if a weight exceeds 2^kRescaleThreshold.
struct WideWeights {
  static constexpr float kLift = 0.0f;
  static constexpr float kRescaleThreshold = 8.0f;
};

}  // namespace lazyrope
