// A temperature of queries by their position: scores of a query at logical position p are
// multiplied by 1 + beta ln(1 + floor((p + offset) / interval)), as in Llama 4 and Ministral 3.
#pragma once

#include "isa/math.cuh"
#include "isa/memory.cuh"
#include "ops/softmax.cuh"

namespace lazyrope {

// Returns the factor of a query's scores. It is exactly 1 in the first interval and before it.
template <class Spec>
LAZYROPE_DEVICE float temperature_at(int32 position) {
  const bool is_before = position < -static_cast<int32>(Spec::kTemperatureOffset);
  const uint32 shifted = is_before ? 0 : static_cast<uint32>(position) + Spec::kTemperatureOffset;
  const uint32 intervals = shifted / Spec::kTemperatureInterval;
  return 1.0f +
         Spec::kTemperatureBeta * kLn2 * lg2_approx_ftz_f32(static_cast<float>(intervals + 1));
}

// The scale of queries that include the softmax scale (kScalesQueries): scale_log2, times the
// query's temperature if the spec has one.
template <class Spec>
struct SoftmaxScale {
  float scale_log2;

  LAZYROPE_DEVICE float at(int32 position) const {
    if constexpr (Spec::kHasTemperature)
      return scale_log2 * temperature_at<Spec>(position);
    else
      return scale_log2;
  }
};

// The factor of each of the lane's rows from a score to a logit in log2 units.
template <int kRowTiles>
struct RowScales {
  float value[kRowTiles][2];

  LAZYROPE_DEVICE float of(int m, int h) const { return value[m][h]; }
};

// Returns the factors of a tile of scores (TileAccess, tile/warp_product.cuh): scale_log2, times
// each row's temperature if the spec has one. `positions` holds the positions of the warp's rows in
// shared memory. The factors of a block are computed again for the next one: they take a few
// instructions a row, and would take registers that the kernels do not have.
template <class Spec, class Scores>
LAZYROPE_DEVICE auto scale_of_rows(float scale_log2, SharedPtr positions) {
  if constexpr (!Spec::kHasTemperature) {
    return UniformScale{scale_log2};
  } else {
    using Access = TileAccess<Scores>;
    RowScales<Access::kRowTiles> scales;
#pragma unroll
    for (int m = 0; m < Access::kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        scales.value[m][h] =
            scale_log2 * temperature_at<Spec>(ld_shared<int32>(positions + Access::row(m, h) * 4));
    return scales;
  }
}

}  // namespace lazyrope
