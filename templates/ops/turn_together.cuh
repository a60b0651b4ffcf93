// Queries turned for one document after the other, all rows of a tile by the same angle: a query
// that is turned for base a, turned by a - b more, is the one turned for base b. So no row's angle
// need be found.
//
// What is kept for that is what products are given for an item's first document. It is turned in
// the arithmetic of its elements, two at a time, by cosines and sines rounded to them: every
// instruction is one less for those who compute. Queries are off by 1.8 times as much then as by
// being rounded once (root of the mean square; a test measures it). Computed eagerly they are off
// by 1.6 times as much, and keys, which are only rounded here, as well. (tests/gpu/NOTES.md,
// "Queries turned in their own arithmetic", has that, and what it comes to where one pair has
// nearly all of a score.)
#pragma once

#include "isa/sync.cuh"
#include "ops/chunk_pairing.cuh"
#include "ops/rotate.cuh"

namespace lazyrope {

// A unit's rotation, two elements at a time: each times a cosine, and its partner times a sine.
template <class P, class Element>
class PackedRotation {
 public:
  using Pairing = P;

 private:
  static constexpr int kWords = Pairing::kPairs;  // of both runs, a's first
  static constexpr int kRunWords = kWords / 2;

 public:
  using Run = Words<kRunWords>;
  // Of each pair a word: its cosine is the lower half.
  using Pairs = Words<Pairing::kPairs>;
  LAZYROPE_DEVICE static uint32 pair(const Rotation& r) { return Element::pack(r.cosine, r.sine); }

  LAZYROPE_DEVICE explicit PackedRotation(const Pairs& pairs) {
    static_assert(pairs_differ_by_a_bit());
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint32 low = pairs.word[pair_of(2 * i)];
      const uint32 high = pairs.word[pair_of(2 * i + 1)];
      cosine_[i] = (low & 0xffff) | high << 16;
      sine_[i] = (low >> 16 | (high & 0xffff0000)) ^
                 ((is_first(2 * i) ? 0x8000 : 0) | (is_first(2 * i + 1) ? 0x80000000 : 0));
    }
  }

  LAZYROPE_DEVICE void apply(Run& a, Run& b) const {
    uint32 x[kWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) x[i] = i < kRunWords ? a.word[i] : b.word[i - kRunWords];
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      const uint32 by_sine = Element::multiply_add(partners(x, i), sine_[i], 0);
      (i < kRunWords ? a.word[i] : b.word[i - kRunWords]) =
          Element::multiply_add(x[i], cosine_[i], by_sine);
    }
  }

 private:
  // Numbers of a pair's two elements, of both runs, differ by this bit. What follows is computed
  // from it, for a search would be unrolled wherever rows are turned, and take long to compile.
  static constexpr int kApart = Pairing::second(0) - Pairing::first(0);
  LAZYROPE_DEVICE static constexpr int pair_of(int element) {
    return element / (2 * kApart) * kApart + element % kApart;
  }
  LAZYROPE_DEVICE static constexpr bool is_first(int element) { return (element & kApart) == 0; }
  // Those of word i's two: a word, or one with its halves exchanged.
  LAZYROPE_DEVICE static uint32 partners(const uint32 (&word)[kWords], int i) {
    if constexpr (kApart == 1)
      return word[i] >> 16 | word[i] << 16;
    else
      return word[i ^ kApart / 2];
  }

  LAZYROPE_DEVICE static constexpr bool pairs_differ_by_a_bit() {
    for (int i = 0; i < Pairing::kPairs; ++i) {
      const int first = Pairing::first(i);
      if (pair_of(first) != i || !is_first(first) || Pairing::second(i) != first + kApart)
        return false;
    }
    return is_power_of_two(kApart);
  }

  uint32 cosine_[kWords];
  uint32 sine_[kWords];
};

// By which a lane turns kept queries, as much of a row at once as the pairing allows.
template <class Spec>
using KeptRotation =
    PackedRotation<typename WidestPairing<typename Spec::Pairing>::Type, typename Spec::Element>;

// The rotation `positions` further, by way of shared memory, where all pairs' rotations lie one
// behind the other: a team finds it; each lane of others takes that of its unit.
template <class Packed, class Team>
LAZYROPE_DEVICE void share_rotation(SharedPtr shared, const uint64* frequencies, int64 positions) {
  using Pairing = typename Packed::Pairing;
#pragma unroll 1
  for (int32 i = Team::rank(); i < Pairing::kUnits * Pairing::kPairs; i += Team::size())
    st_shared(shared + i * 4, Packed::pair(rotation_at(positions, ld_global_nc(frequencies + i))));
}
template <class Packed>
LAZYROPE_DEVICE Packed shared_rotation(SharedPtr shared) {
  using Pairing = typename Packed::Pairing;
  using Part = Words<smaller(Pairing::kPairs, 4)>;
  constexpr int kParts = Pairing::kPairs * 4 / sizeof(Part);
  const SharedPtr first = shared + lane_unit<Pairing>() * (Pairing::kPairs * 4);
  Part parts[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i)
    parts[i] = ld_shared<Part>(first + i * static_cast<int32>(sizeof(Part)));
  typename Packed::Pairs pairs;
#pragma unroll
  for (int i = 0; i < Pairing::kPairs; ++i) pairs.word[i] = parts[i / 4].word[i % 4];
  return Packed(pairs);
}

// One warp turns the rotated columns of kRows kept rows, a multiple of eight, of which a lane has
// its unit's, kAtOnce rows at a time, as registers suffice. `to` may be `from`. Rows eight apart
// have their places in common but for an offset, others of an octet but for some bits. Lanes of
// neighbouring groups have rows four apart, whose chunks lie in other banks.
template <int kRows, int kAtOnce, class Packed, class To, class From>
LAZYROPE_DEVICE void turn_together(To to, From from, const Packed& rotation) {
  using Pairing = typename Packed::Pairing;
  using Run = typename Packed::Run;
  constexpr int kOctet = 8;
  constexpr int kOctets = kRows / kOctet;
  constexpr int kGroups = floor_power_of_two(smaller(kOctet, kWarpThreads / Pairing::kUnits));
  const int32 unit = lane_unit<Pairing>();
  const int32 group = lane_index() / Pairing::kUnits;
  if (group >= kGroups) return;
  const int32 first = group % 2 * 4 + group / 2 % 2 * 2 + group / 4;
  const UnitRuns source = from.template runs<Pairing>(first, unit);
  const UnitRuns target = to.template runs<Pairing>(first, unit);
  static_assert(kOctets * kOctet == kRows && kOctets % kAtOnce == 0);
#pragma unroll 1
  for (int32 i = 0; i < kOctet / kGroups; ++i) {
    const UnitRuns source_i = From::below(source, i);
    const UnitRuns target_i = To::below(target, i);
#pragma unroll
    for (int32 octet = 0; octet < kOctets; octet += kAtOnce) {
      Run a[kAtOnce];
      Run b[kAtOnce];
#pragma unroll
      for (int32 k = 0; k < kAtOnce; ++k) {
        const UnitRuns at = From::below(source_i, (octet + k) * kOctet);
        a[k] = ld_shared<Run>(at.a);
        b[k] = ld_shared<Run>(at.b);
      }
#pragma unroll
      for (int32 k = 0; k < kAtOnce; ++k) {
        const UnitRuns at = To::below(target_i, (octet + k) * kOctet);
        rotation.apply(a[k], b[k]);
        st_shared(at.a, a[k]);
        st_shared(at.b, b[k]);
      }
    }
  }
}

}  // namespace lazyrope
