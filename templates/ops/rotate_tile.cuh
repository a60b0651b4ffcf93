// Queries turned for one document after the other, all rows of a tile by the same angle: a query
// that is turned for base a, turned by a - b more, is the one turned for base b. So no row's angle
// need be found.
//
// What is kept for that is what products are given for a work tile's first document. It is turned
// in the arithmetic of its elements, two at a time, by cosines and sines rounded to them: every
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
  // The cosines of all pairs, two a word, then their sines.
  using Pairs = Words<Pairing::kPairs>;

  LAZYROPE_DEVICE explicit PackedRotation(const Pairs& pairs) {
    static_assert(pairs_differ_by_a_bit());
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      cosine_[i] = of_word(pairs, 0, i);
      sine_[i] = of_word(pairs, Pairing::kPairs, i) ^
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
  // Of the two elements of word i what their pairs have: cosines from half 0 on, or sines from half
  // kPairs on.
  LAZYROPE_DEVICE static uint32 of_word(const Pairs& pairs, int first, int i) {
    const int low = first + pair_of(2 * i);
    const int high = first + pair_of(2 * i + 1);
    if (low % 2 == 0 && high == low + 1) return pairs.word[low / 2];
    return half(pairs, low) | half(pairs, high) << 16;
  }
  LAZYROPE_DEVICE static uint32 half(const Pairs& pairs, int i) {
    return pairs.word[i / 2] >> i % 2 * 16 & 0xffff;
  }
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
using TileRotation =
    PackedRotation<typename WidestPairing<typename Spec::Pairing>::Type, typename Spec::Element>;

// The rotation `positions` further, by way of shared memory, where all units' rotations lie one
// behind the other: a team finds it; each lane of others takes that of its unit. A lane finds a
// pair's, and writes a word of its own and its neighbour's: cosines, or sines.
template <class Spec, class Team>
LAZYROPE_DEVICE void write_shared_rotation(SharedPtr shared, const uint64* frequencies,
                                           int64 positions) {
  using Pairing = typename TileRotation<Spec>::Pairing;
  constexpr int32 kPairs = Pairing::kPairs;
  constexpr int32 kCount = Pairing::kUnits * kPairs;
  static_assert(kPairs % 2 == 0);
#pragma unroll 1
  for (int32 first = 0; first < kCount; first += Team::size()) {
    const int32 i = first + Team::rank();
    const int32 pair = kCount % Team::size() == 0 ? i : smaller(i, kCount - 1);
    const Rotation r = rotation_at(positions, ld_global_nc(frequencies + pair));
    const uint32 own = Spec::Element::pack(r.cosine, r.sine);
    const uint32 other = shfl_sync_bfly(own, 1);
    const bool has_sines = i % 2 != 0;
    const uint32 word = has_sines ? other >> 16 | (own & 0xffff0000) : (own & 0xffff) | other << 16;
    const int32 word_index = i / kPairs * kPairs + i % kPairs / 2 + (has_sines ? kPairs / 2 : 0);
    if (i == pair) st_shared(shared + word_index * 4, word);
  }
}
template <class Packed>
LAZYROPE_DEVICE Packed read_shared_rotation(SharedPtr shared) {
  using Pairing = typename Packed::Pairing;
  using Vector = Words<smaller(Pairing::kPairs, 4)>;
  constexpr int kVectors = Pairing::kPairs * 4 / sizeof(Vector);
  const SharedPtr first = shared + lane_unit<Pairing>() * (Pairing::kPairs * 4);
  Vector vectors[kVectors];
#pragma unroll
  for (int i = 0; i < kVectors; ++i)
    vectors[i] = ld_shared<Vector>(first + i * static_cast<int32>(sizeof(Vector)));
  typename Packed::Pairs pairs;
#pragma unroll
  for (int i = 0; i < Pairing::kPairs; ++i) pairs.word[i] = vectors[i / 4].word[i % 4];
  return Packed(pairs);
}

// How one warp turns the rotated columns of kept rows, a multiple of eight, of which a lane has its
// unit's. Rows eight apart have their places in common but for an offset, others of an octet but
// for some bits. Lanes of neighbouring groups have rows four apart, whose chunks lie in other
// banks.
template <class Packed, class To, class From, bool kExists = true>
class TileRotator {
  using Pairing = typename Packed::Pairing;
  using Run = typename Packed::Run;
  static constexpr int kOctet = 8;
  static constexpr int kGroups =
      floor_power_of_two(smaller(kOctet, kWarpThreads / Pairing::kUnits));

 public:
  // `to` may be `from`.
  LAZYROPE_DEVICE TileRotator(To to, From from)
      : source_(from.template runs<Pairing>(first_row(), lane_unit<Pairing>())),
        target_(to.template runs<Pairing>(first_row(), lane_unit<Pairing>())) {}

  // kRows of them, kAtOnce at a time, as registers suffice; into another tile, `offset` bytes
  // behind `to`.
  template <int kRows, int kAtOnce>
  LAZYROPE_DEVICE void rotate(const Packed& rotation, int32 offset = 0) const {
    constexpr int kOctets = kRows / kOctet;
    static_assert(kOctets * kOctet == kRows && kOctets % kAtOnce == 0);
    if (group() >= kGroups) return;
    const UnitRuns target = {target_.a + offset, target_.b + offset};
#pragma unroll 1
    for (int32 i = 0; i < kOctet / kGroups; ++i) {
      const UnitRuns source_i = From::below(source_, i);
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

 private:
  LAZYROPE_DEVICE static int32 group() { return lane_index() / Pairing::kUnits; }
  LAZYROPE_DEVICE static int32 first_row() {
    return group() % 2 * 4 + group() / 2 % 2 * 2 + group() / 4;
  }

  UnitRuns source_;
  UnitRuns target_;
};

// Where none are turned together.
template <class Packed, class To, class From>
class TileRotator<Packed, To, From, false> {
 public:
  LAZYROPE_DEVICE TileRotator(To, From) {}
};

}  // namespace lazyrope
