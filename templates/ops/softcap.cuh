// Soft capping of scores: softcap * tanh(score / softcap), as in Gemma 2 (arXiv 2408.00118, section
// 2).
#pragma once

#include "isa/math.cuh"
#include "ops/softmax.cuh"
#include "tile/warp_product.cuh"

namespace lazyrope {

// Caps an accumulator tile (TileAccess); each lane caps its own registers. `scale` is the softmax
// scale times log2(e) (UniformScale, ops/softmax.cuh), and the result is in log2 units. tanh(x) is
// computed as 1 - 2 / (e^(2x) + 1), whose error relative to the cap is as small for large scores as
// near 0.
template <class Scores, class Scale>
LAZYROPE_DEVICE void cap_scores(Scores& scores, const Scale& scale, float softcap) {
  using Access = TileAccess<Scores>;
  const float cap = softcap * kLog2e;
#pragma unroll
  for (int m = 0; m < Access::kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < Access::kColumnTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = Access::at(scores, m, n, i);
        const float exponent = 2.0f * scale.of(m, i / 2) * (1.0f / softcap);
        const float e = ex2_approx_ftz_f32(score * exponent);
        score = cap - 2.0f * cap * rcp_approx_ftz_f32(e + 1.0f);
      }
}

// Caps scores if the spec has a softcap. Returns the factor that is left from a score to a logit.
template <class Spec, class Scores, class Scale>
LAZYROPE_DEVICE auto apply_softcap(Scores& scores, const Scale& scale) {
  if constexpr (Spec::kSoftcap > 0.0f) {
    cap_scores(scores, scale, Spec::kSoftcap);
    return UniformScale{1.0f};
  } else {
    return scale;
  }
}

}  // namespace lazyrope
