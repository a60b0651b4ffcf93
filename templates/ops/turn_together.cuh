// Queries turned for one document after the other, all rows of a tile by the same angle: a query
// that is turned for base a, turned by a - b more, is the one turned for base b. So no row's angle
// need be found.
//
// The queries turned for a document are kept for that, more exactly than they are given to
// products: those of bf16 as fp16, a 256th as large (which has room for 2^24), and what is made of
// them on the way is fp16, too (which has room for 2^14 / scale). Queries are off by 4% more then
// than by being rounded to bf16 once. (Those of fp16 are turned in fp32, and rounded once more.)
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

// What is given to products, and kept.
template <class Spec>
struct GivenAndKept : ForProducts<Spec> {
  using Kept = ToKeep<Spec>;
};

template <class Spec>
struct FromKept {
  using From = typename ToKeep<Spec>::To;
  using To = typename Spec::Element;
  static constexpr float kFactor = 1.0f / ToKeep<Spec>::kScale;
};

// By which kept queries are turned `positions` more, with what FromKept multiplies by, and `scale`.
template <class Spec>
LAZYROPE_DEVICE UnitRotation<typename Spec::Pairing> rotation_of(int64 positions, float scale) {
  UnitRotation<typename Spec::Pairing> rotation;
  rotation.set(positions, LaneTurns<Spec>().turns, FromKept<Spec>::kFactor * scale);
  return rotation;
}

// The same by way of shared memory, where all pairs' rotations lie one behind the other.
template <class Spec, class Team>
LAZYROPE_DEVICE void share_rotation(SharedPtr rotations, int64 positions, float scale) {
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
LAZYROPE_DEVICE UnitRotation<typename Spec::Pairing> shared_rotation(SharedPtr rotations) {
  using Pairing = typename Spec::Pairing;
  constexpr int32 kBytes = sizeof(Rotation);
  const SharedPtr first = rotations + lane_unit<Pairing>() * (Pairing::kPairs * kBytes);
  UnitRotation<Pairing> rotation;
#pragma unroll
  for (int32 i = 0; i < Pairing::kPairs; ++i)
    rotation.pair[i] = ld_shared<Rotation>(first + i * kBytes);
  return rotation;
}

// A unit's rotation, in halves: two elements at a time, each times a cosine, and its partner times
// a sine.
template <class Pairing, class Result>
class HalfRotation {
  static constexpr int kWords = Pairing::kPairs;  // of both runs, a's first
  static constexpr int kRunWords = kWords / 2;

 public:
  using Run = Words<kRunWords>;

  LAZYROPE_DEVICE explicit HalfRotation(const UnitRotation<Pairing>& rotation) {
    float cosine[2 * kWords];
    float sine[2 * kWords];
#pragma unroll
    for (int i = 0; i < Pairing::kPairs; ++i) {
      cosine[Pairing::first(i)] = cosine[Pairing::second(i)] = rotation.pair[i].cosine;
      sine[Pairing::first(i)] = -rotation.pair[i].sine;
      sine[Pairing::second(i)] = rotation.pair[i].sine;
    }
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      cosine_[i] = Fp16::pack(cosine[2 * i], cosine[2 * i + 1]);
      sine_[i] = Fp16::pack(sine[2 * i], sine[2 * i + 1]);
    }
  }

  LAZYROPE_DEVICE void apply(Run& a, Run& b) const {
    uint32 x[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) x[i] = i < kRunWords ? a.word[i] : b.word[i - kRunWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint32 by_sine = Fp16::multiply_add(partners(x, i), sine_[i], 0);
      const FloatPair y = Fp16::unpack(Fp16::multiply_add(x[i], cosine_[i], by_sine));
      (i < kRunWords ? a.word[i] : b.word[i - kRunWords]) = Result::pack(y.low, y.high);
    }
  }

 private:
  // Of element `element` of both runs, that with which it turns.
  LAZYROPE_DEVICE static constexpr int partner(int element) {
    int found = 0;
    for (int i = 0; i < Pairing::kPairs; ++i) {
      if (Pairing::first(i) == element) found = Pairing::second(i);
      if (Pairing::second(i) == element) found = Pairing::first(i);
    }
    return found;
  }
  // Those of word i's two: a word, or one with its halves exchanged, as far as pairings go.
  LAZYROPE_DEVICE static uint32 partners(const uint32 (&word)[kWords], int i) {
    const int low = partner(2 * i);
    const int high = partner(2 * i + 1);
    return (word[low / 2] >> low % 2 * 16 & 0xffff) | word[high / 2] >> high % 2 * 16 << 16;
  }

  uint32 cosine_[kWords];
  uint32 sine_[kWords];
};

// The same exactly: of what was not kept as fp16, and where nothing is rounded to less.
template <class Pairing, class Element, class Result>
class ExactRotation {
 public:
  using Run = typename UnitRotation<Pairing>::Run;

  LAZYROPE_DEVICE explicit ExactRotation(const UnitRotation<Pairing>& rotation)
      : rotation_(rotation) {}
  LAZYROPE_DEVICE void apply(Run& a, Run& b) const {
    rotation_.template apply<Element, Result>(a, b);
  }

 private:
  UnitRotation<Pairing> rotation_;
};

// By which kept queries are turned.
template <class Spec, class From = typename FromKept<Spec>::From,
          class To = typename FromKept<Spec>::To>
struct KeptRotationOf {
  using Type = ExactRotation<typename Spec::Pairing, From, To>;
};
template <class Spec>
struct KeptRotationOf<Spec, Fp16, Bf16> {
  using Type = HalfRotation<typename Spec::Pairing, Bf16>;
};
template <class Spec>
using KeptRotation = typename KeptRotationOf<Spec>::Type;

// One warp turns kRows kept rows, a multiple of eight, of which a lane has its unit's columns.
// Every instruction is one less for those who compute: rows eight apart have their places in common
// but for an offset, others of an octet but for some bits. Lanes of neighbouring groups have rows
// four apart, whose chunks lie in other banks.
template <class Spec, int kRows, class To, class From>
LAZYROPE_DEVICE void turn_together(To to, From from, const KeptRotation<Spec>& rotation,
                                   float scale) {
  using Pairing = typename Spec::Pairing;
  using Run = typename KeptRotation<Spec>::Run;
  constexpr int kOctet = 8;
  constexpr int kOctets = kRows / kOctet;
  constexpr int kGroups = floor_power_of_two(smaller(kOctet, kWarpThreads / Pairing::kUnits));
  copy_unrotated<Spec>(to, from, kRows, scale);
  const int32 unit = lane_unit<Pairing>();
  const int32 group = lane_index() / Pairing::kUnits;
  if (group >= kGroups) return;
  const int32 first = group % 2 * 4 + group / 2 % 2 * 2 + group / 4;
  const UnitRuns source = from.template runs<Pairing>(first, unit);
  const UnitRuns target = to.template runs<Pairing>(first, unit);
#pragma unroll 1  // else it would be a seventh shorter, and take longer (head_dim 64, H100)
  for (int32 i = 0; i < kOctet / kGroups; ++i) {
    Run a[kOctets];
    Run b[kOctets];
#pragma unroll
    for (int32 octet = 0; octet < kOctets; ++octet) {
      const UnitRuns at = From::below(source, octet * kOctet + i);
      a[octet] = ld_shared<Run>(at.a);
      b[octet] = ld_shared<Run>(at.b);
    }
#pragma unroll
    for (int32 octet = 0; octet < kOctets; ++octet) {
      const UnitRuns at = To::below(target, octet * kOctet + i);
      rotation.apply(a[octet], b[octet]);
      st_shared(at.a, a[octet]);
      st_shared(at.b, b[octet]);
    }
  }
}

}  // namespace lazyrope
