// Queries turned for one document after the other, all rows of a tile by the same angle: a query
// that is turned for base a, turned by a - b more, is the one turned for base b. So no row's angle
// need be found.
//
// The queries turned for a document are kept for that, more exactly than they are given to
// products: those of bf16 as fp16, a 256th as large (which has room for 2^24). What that loses is
// an eighth of what the last rounding loses. (Those of fp16 are rounded once more.)
#pragma once

#include "ops/rotate.cuh"

namespace lazyrope {

// From queries as they come to what is kept. Such as come turned, for base 0, are kept as they are.
template <class Spec, bool kQueryRotated = Spec::kQueryRotated>
struct ToKeep {
  using From = typename Spec::Element;
  using To = Fp16;
  static constexpr float kScale = From::kMantissaBits < To::kMantissaBits ? 1.0f / 256.0f : 1.0f;
  static constexpr float kFactor = Spec::kAttentionFactor * kScale;
};
template <class Spec>
struct ToKeep<Spec, true> {
  using From = typename Spec::Element;
  using To = typename Spec::Element;
  static constexpr float kScale = 1.0f;
  static constexpr float kFactor = 1.0f;
};

template <class Spec>
struct FromKept {
  using From = typename ToKeep<Spec>::To;
  using To = typename Spec::Element;
  static constexpr float kFactor = 1.0f / ToKeep<Spec>::kScale;
};

// By which kept queries are turned `positions` more, with what FromKept multiplies by, and `scale`.
template <class Spec>
LAZYROPE_DEVICE CommonAngle<Spec> angle_of(int64 positions, float scale) {
  CommonAngle<Spec> angle;
  angle.rotation.set(positions, LaneTurns<Spec>().turns, FromKept<Spec>::kFactor * scale);
  return angle;
}

// The same by way of shared memory, where all pairs' rotations lie one behind the other.
template <class Spec, class Team>
LAZYROPE_DEVICE void share_angle(SharedPtr rotations, int64 positions, float scale) {
  constexpr int kPairs = Spec::Pairing::kUnits * Spec::Pairing::kPairs;
  const float factor = FromKept<Spec>::kFactor * scale;
#pragma unroll 1
  for (int32 pair = Team::rank(); pair < kPairs; pair += Team::size()) {
    const Rotation r = rotation_at(positions, ld_global_nc(Spec::frequencies() + pair));
    st_shared(rotations + pair * static_cast<int32>(sizeof(Rotation)),
              Rotation{r.cosine * factor, r.sine * factor});
  }
}
template <class Spec>
LAZYROPE_DEVICE CommonAngle<Spec> shared_angle(SharedPtr rotations) {
  using Pairing = typename Spec::Pairing;
  constexpr int32 kBytes = sizeof(Rotation);
  const SharedPtr first = rotations + lane_unit<Pairing>() * (Pairing::kPairs * kBytes);
  CommonAngle<Spec> angle;
#pragma unroll
  for (int32 i = 0; i < Pairing::kPairs; ++i)
    angle.rotation.pair[i] = ld_shared<Rotation>(first + i * kBytes);
  return angle;
}

}  // namespace lazyrope
