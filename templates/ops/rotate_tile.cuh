// Rotates all rows of a tile by the same number of positions, from one document to another. A query
// q at position p that is rotated for base a is rotated for base b by a - b positions more:
//   R(p - b) q = R(a - b) R(p - a) q.
// This rotation does not depend on the query's position.
//
// The rows are saved queries, which are already rotated for the work tile's first document and
// rounded to 16 bits. They are rotated in packed 16-bit arithmetic, with cosines and sines rounded
// to 16 bits. This takes few issue slots from the consumers.
//
// The root-mean-square error is 1.8 times that of rounding once (tests/python/test_hopper.py).
// Eager RoPE has 1.6 times that of rounding once, in queries and in keys; here keys are rounded
// once. tests/gpu/experiments/2026-11-25-rotation-16-bit.md has the figures, and those of scores
// that depend on one pair.
#pragma once

#include "isa/sync.cuh"
#include "ops/chunk_pairing.cuh"
#include "ops/rotate.cuh"

namespace lazyrope {

// The rotation of one unit, two elements at a time: each element times a cosine, plus the other
// element of its pair times a sine. The words of sines include the signs.
template <class P, class Element>
class PackedRotation {
 public:
  using Pairing = P;

 private:
  static constexpr int kWords = Pairing::kPairs;  // words of both runs, a's first
  static constexpr int kRunWords = kWords / 2;

 public:
  using Run = Words<kRunWords>;
  // The cosines of all pairs, two per word, and then their sines.
  using Pairs = Words<Pairing::kPairs>;

  LAZYROPE_DEVICE explicit PackedRotation(const Pairs& pairs) {
    static_assert(pairs_differ_by_a_bit());
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      cosine_[i] = values_of_word(pairs, 0, i);
      sine_[i] = values_of_word(pairs, Pairing::kPairs, i) ^
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
  // The elements of both runs are counted together, and the two of a pair differ by this bit of
  // their indices. The next functions use the bit: a search would be unrolled at every use and take
  // long to compile.
  static constexpr int kPairBit = Pairing::second(0) - Pairing::first(0);
  LAZYROPE_DEVICE static constexpr int pair_of(int element) {
    return element / (2 * kPairBit) * kPairBit + element % kPairBit;
  }
  LAZYROPE_DEVICE static constexpr bool is_first(int element) { return (element & kPairBit) == 0; }
  // Returns two values for word i, those of its elements' pairs. They are cosines if `first` is 0,
  // and sines if it is kPairs.
  LAZYROPE_DEVICE static uint32 values_of_word(const Pairs& pairs, int first, int i) {
    const int low = first + pair_of(2 * i);
    const int high = first + pair_of(2 * i + 1);
    if (low % 2 == 0 && high == low + 1) return pairs.word[low / 2];
    return half_word(pairs, low) | half_word(pairs, high) << 16;
  }
  LAZYROPE_DEVICE static uint32 half_word(const Pairs& pairs, int i) {
    return pairs.word[i / 2] >> i % 2 * 16 & 0xffff;
  }
  // Returns the other elements of the pairs of word i's two elements: another word, or word i with
  // its halves exchanged.
  LAZYROPE_DEVICE static uint32 partners(const uint32 (&word)[kWords], int i) {
    if constexpr (kPairBit == 1)
      return word[i] >> 16 | word[i] << 16;
    else
      return word[i ^ kPairBit / 2];
  }

  LAZYROPE_DEVICE static constexpr bool pairs_differ_by_a_bit() {
    for (int i = 0; i < Pairing::kPairs; ++i) {
      const int first = Pairing::first(i);
      if (pair_of(first) != i || !is_first(first) || Pairing::second(i) != first + kPairBit)
        return false;
    }
    return is_power_of_two(kPairBit);
  }

  uint32 cosine_[kWords];
  uint32 sine_[kWords];
};

// The rotation that a lane applies to saved queries. Its units are as wide as the pairing allows.
template <class Spec>
using TileRotation =
    PackedRotation<typename WidestPairing<typename Spec::Pairing>::Type, typename Spec::Element>;

// Computes the rotation by `positions` positions and writes it to shared memory, one unit after
// another. All threads of the team take part. Two neighbouring lanes compute the rotations of two
// pairs: the even lane writes both cosines in one word, the odd lane both sines.
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
// Reads the rotation of the calling lane's unit.
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

// Rotates rows of a tile; their number is a multiple of eight. One warp takes part: each lane
// rotates the columns of its unit in some rows. An octet is eight consecutive rows: addresses
// differ by an offset between octets, and by some bits inside one. Neighbouring groups of lanes
// have rows four apart, whose chunks are in other banks.
template <class Packed, class To, class From, bool kIsUsed = true>
class TileRotator {
  using Pairing = typename Packed::Pairing;
  using Run = typename Packed::Run;
  static constexpr int kOctet = 8;
  static constexpr int kGroups =
      floor_power_of_two(smaller(kOctet, kWarpThreads / Pairing::kUnits));

 public:
  // `to` and `from` may be the same tile.
  LAZYROPE_DEVICE TileRotator(To to, From from)
      : source_(from.template runs<Pairing>(first_row(), lane_unit<Pairing>())),
        target_(to.template runs<Pairing>(first_row(), lane_unit<Pairing>())) {}

  // Rotates kRows rows and writes them `offset` bytes after `to`. A lane holds its rows of
  // kOctetsInFlight octets in registers at once.
  template <int kRows, int kOctetsInFlight>
  LAZYROPE_DEVICE void rotate(const Packed& rotation, int32 offset = 0) const {
    constexpr int kOctets = kRows / kOctet;
    static_assert(kOctets * kOctet == kRows && kOctets % kOctetsInFlight == 0);
    if (group() >= kGroups) return;
    const UnitRuns target = {target_.a + offset, target_.b + offset};
#pragma unroll 1
    for (int32 i = 0; i < kOctet / kGroups; ++i) {
      const UnitRuns source_i = From::advance_rows(source_, i);
      const UnitRuns target_i = To::advance_rows(target, i);
#pragma unroll
      for (int32 octet = 0; octet < kOctets; octet += kOctetsInFlight) {
        Run a[kOctetsInFlight];
        Run b[kOctetsInFlight];
#pragma unroll
        for (int32 k = 0; k < kOctetsInFlight; ++k) {
          const UnitRuns runs = From::advance_rows(source_i, (octet + k) * kOctet);
          a[k] = ld_shared<Run>(runs.a);
          b[k] = ld_shared<Run>(runs.b);
        }
#pragma unroll
        for (int32 k = 0; k < kOctetsInFlight; ++k) {
          const UnitRuns runs = To::advance_rows(target_i, (octet + k) * kOctet);
          rotation.apply(a[k], b[k]);
          st_shared(runs.a, a[k]);
          st_shared(runs.b, b[k]);
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

// This specialization is for kernels that do not rotate tiles.
template <class Packed, class To, class From>
class TileRotator<Packed, To, From, false> {
 public:
  LAZYROPE_DEVICE TileRotator(To, From) {}
};

}  // namespace lazyrope
