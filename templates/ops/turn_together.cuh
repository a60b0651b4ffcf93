// Queries turned for one document after the other, all rows of a tile by the same angle: a query
// that is turned for base a, turned by a - b more, is the one turned for base b. As a product with
// the matrix of that rotation this takes a fourth of the instructions that each row's own angle
// takes.
//
// The queries turned for a document are kept for that, more exactly than they are given to
// products: those of bf16 as fp16, a 256th as large (which has room for 2^24). The matrix is two of
// their type, of which the second is what the first lacks. So what is lost before the last rounding
// is a sixth of what that loses.
#pragma once

#include "ops/rotate.cuh"

namespace lazyrope {

// What queries are kept as. Such as come turned, for base 0, are kept as they are.
template <class Spec, bool kQueryRotated = Spec::kQueryRotated>
struct KeptQueries {
  using Element = Fp16;
  static constexpr bool kGainsDigits = Spec::Element::kMantissaBits < Element::kMantissaBits;
  static constexpr float kScale = kGainsDigits ? 1.0f / 256.0f : 1.0f;
  static constexpr float kFactor = Spec::kAttentionFactor * kScale;
};
template <class Spec>
struct KeptQueries<Spec, true> {
  using Element = typename Spec::Element;
  static constexpr float kScale = 1.0f;
  static constexpr float kFactor = 1.0f;
};

// What rows are turned to by their own angles.
template <class Spec, bool kTogether>
struct TurnedAs {
  using Type = ForProducts<Spec>;
};
template <class Spec>
struct TurnedAs<Spec, true> {
  using Type = KeptQueries<Spec>;
};

// Of an octet's matrix (ops/rope/half.cuh) a column, for both products: its two numbers that are
// not zero, rounded, and what that lacks.
struct alignas(16) RotationColumn {
  uint32 high[2];
  uint32 low[2];
};

template <class Spec>
LAZYROPE_DEVICE RotationColumn rotation_column(int32 octet, int32 column, int64 positions) {
  using Pairing = typename Spec::Pairing;
  using Kept = KeptQueries<Spec>;
  // A pair's second column is its first, a quarter of a turn back.
  const uint64 back = column % 2 == 0 ? 0 : uint64{1} << 62;
  RotationColumn made;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    const uint64 turns_per_token =
        ld_global_nc(Spec::frequencies() + octet * 8 + Pairing::pair_of(column / 2, i));
    const Rotation r = rotation_by(static_cast<uint64>(positions) * turns_per_token - back);
    const float a = r.cosine / Kept::kScale;
    const float b = -r.sine / Kept::kScale;
    made.high[i] = Kept::Element::pack(a, b);
    const FloatPair rounded = Kept::Element::unpack(made.high[i]);
    made.low[i] = Kept::Element::pack(a - rounded.low, b - rounded.high);
  }
  return made;
}

// An octet's matrix, as lanes hold it, and rows multiplied by it, 16 at a time.
template <class Spec>
class OctetRotation {
  using Pairing = typename Spec::Pairing;

 public:
  // `column`: the lane's, in lanes that have one.
  LAZYROPE_DEVICE explicit OctetRotation(const RotationColumn& column)
      : column_(has_column() ? column : RotationColumn{}) {}

  // A column, of which most lanes have none: the others have it and, of its rows, two that are
  // zero.
  LAZYROPE_DEVICE static int32 column() { return lane_index() / 4; }
  LAZYROPE_DEVICE static bool has_column() { return column() / 2 == lane_index() % 4; }

  // Rows 0-7 and 8-15 of run a, then of run b.
  LAZYROPE_DEVICE void turn(uint32 (&runs)[4]) const {
    float y[2][4] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32 upper = Pairing::elements(i, runs[0], runs[2]);
      const uint32 lower = Pairing::elements(i, runs[1], runs[3]);
      const uint32 twice[4] = {upper, lower, upper, lower};
      KeptQueries<Spec>::Element::mma(y[i], twice, column_.high[i], column_.low[i]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const FloatPair p = {y[0][2 * h], y[0][2 * h + 1]};
      const FloatPair q = {y[1][2 * h], y[1][2 * h + 1]};
      runs[h] = pack(Pairing::in_run_a(p, q));
      runs[2 + h] = pack(Pairing::in_run_b(p, q));
    }
  }

 private:
  LAZYROPE_DEVICE static uint32 pack(FloatPair p) { return Spec::Element::pack(p.low, p.high); }

  RotationColumn column_;
};

// A column's place among those of all octets, one behind the other.
LAZYROPE_DEVICE SharedPtr place_of_column(SharedPtr columns, int32 octet, int32 column) {
  return columns + (octet * 8 + column) * static_cast<int32>(sizeof(RotationColumn));
}

// One of kWarps warps: its part of the columns of all octets.
template <class Spec, int kWarps>
LAZYROPE_DEVICE void make_rotation(SharedPtr columns, int32 warp, int64 positions) {
#pragma unroll 1
  for (int32 i = warp * kWarpThreads + lane_index(); i < Spec::Pairing::kOctets * 8;
       i += kWarps * kWarpThreads)
    st_shared(place_of_column(columns, i / 8, i % 8),
              rotation_column<Spec>(i / 8, i % 8, positions));
}

// One warp: 16 kept queries, turned in their place.
template <class Spec, class Tile>
LAZYROPE_DEVICE void turn_sixteen(SharedPtr tile, int32 first_row, SharedPtr columns) {
  using Pairing = typename Spec::Pairing;
  using Octet = OctetRotation<Spec>;
  const int32 row = first_row + lane_index() % 16;
#pragma unroll 4
  for (int32 octet = 0; octet < Pairing::kOctets; ++octet) {
    RotationColumn column{};
    if (Octet::has_column())
      column = ld_shared<RotationColumn>(place_of_column(columns, octet, Octet::column()));
    const int32 chunk = lane_index() < 16 ? Pairing::octet_a(octet) : Pairing::octet_b(octet);
    const SharedPtr place = Tile::chunk(tile, row, chunk);
    uint32 runs[4];
    ldmatrix_x4(runs, place);
    Octet(column).turn(runs);
    stmatrix_x4(place, runs);
  }
}

// One of kWarps warps: its part of kRows rows of kept queries, turned by `positions` more.
template <class Spec, class Tile, class KeptTile, int kRows, int kWarps>
LAZYROPE_DEVICE void turn_together(SharedPtr turned, SharedPtr kept, int32 warp, int64 positions) {
  using Pairing = typename Spec::Pairing;
  constexpr int32 kParts = 2;  // of the rows: warps have equal shares of all octets' parts
  constexpr int32 kPartRows = kRows / kParts;
  static_assert(kPartRows % 16 == 0);
#pragma unroll 1
  for (int32 part = warp; part < Pairing::kOctets * kParts; part += kWarps) {
    const int32 octet = part / kParts;
    const int32 row = part % kParts * kPartRows + lane_index() % 16;
    const int32 chunk = lane_index() < 16 ? Pairing::octet_a(octet) : Pairing::octet_b(octet);
    const SharedPtr from = KeptTile::chunk(kept, row, chunk);
    const SharedPtr to = Tile::chunk(turned, row, chunk);
    const OctetRotation<Spec> rotation(
        rotation_column<Spec>(octet, OctetRotation<Spec>::column(), positions));
#pragma unroll
    for (int32 i = 0; i < kPartRows / 16; ++i) {
      uint32 runs[4];
      ldmatrix_x4(runs, KeptTile::rows(from, i));
      rotation.turn(runs);
      stmatrix_x4(to + Tile::row_step(i), runs);
    }
  }
}

}  // namespace lazyrope
