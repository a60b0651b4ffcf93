// A warp's rows of a tile of queries as they are turned for one document after the other
// (ops/turn_together.cuh): how they are kept, and how they come from there to where products read
// them.
//
// What is kept is an image of the tile, which copies of bytes bring. Over a row's rotated columns
// its units lie one behind the other, each with both of its runs: a lane loads a unit at once. It
// has the same unit of the same rows as in rotate_rows(), all the way.
#pragma once

#include "isa/bulk_copy.cuh"
#include "isa/sync.cuh"
#include "ops/turn_together.cuh"

namespace lazyrope {

// kRows: a multiple of eight.
template <class Spec, class Tile, int kRows>
class KeptRows {
  using Pairing = typename Spec::Pairing;
  using Rotation = KeptRotation<Spec>;
  using Run = typename Rotation::Run;
  using Unit = Words<Pairing::kPairs>;  // run a, then run b
  static constexpr int kFour = 4;       // rows that are under way at once
  static constexpr int kShare = lane_share<Pairing>(kRows, kFour);  // of a lane
  static constexpr int kRunColumns = Pairing::kPairs;
  static constexpr int kRotatedRuns = 2 * Pairing::kUnits;
  static constexpr int kOtherRuns = Spec::kHeadDim / kRunColumns - kRotatedRuns;

 public:
  // From row `first_row` of the tile on, a multiple of eight. `kept`: of the tile.
  LAZYROPE_DEVICE KeptRows(SharedPtr tile, int32 first_row, uint8* kept)
      : rows_(tile, first_row),
        kept_(kept),
        unit_(lane_unit<Pairing>()),
        first_(lane_index() / Pairing::kUnits * kShare) {}

  // The rows, which are as they are to be kept, are, and are turned.
  LAZYROPE_DEVICE void keep(const Rotation& rotation) const {
    keep_unrotated();
#pragma unroll 1
    for (int32 i = 0; i < kShare; ++i) {
      if (!has_row(i)) break;
      const UnitRuns runs = rows_.template runs<Pairing>(row(i), unit_);
      const Unit unit = joined(ld_shared<Run>(runs.a), ld_shared<Run>(runs.b));
      st_global(image<Unit>(place(row(i))), unit);
      turn(runs, unit, rotation);
    }
    fence_proxy_async_global();
  }

  // Turns what has come. A row's lanes read it all before one of them writes.
  LAZYROPE_DEVICE void turn(const Rotation& rotation) const {
    Unit units[kFour];
    load(units, 0);
#pragma unroll 2
    for (int32 i = 0; i < kShare; i += kFour) {
      bar_warp_sync();
      turn_four(units, i, rotation);
    }
  }
  // What has been turned is again as it came.
  LAZYROPE_DEVICE void restore() const {
#pragma unroll 1
    for (int32 i = 0; i < kShare; ++i) {
      const SharedPtr unit = place(row(i));
      if (has_row(i)) st_shared(unit, ld_global(image<Unit>(unit)));
    }
  }

 private:
  // The lane's i-th row. Where lanes with a unit all have the same rows, the other lanes have none.
  static constexpr bool kHasOneGroup = 2 * Pairing::kUnits > kWarpThreads;
  LAZYROPE_DEVICE int32 row(int32 i) const { return kHasOneGroup ? i : first_ + i; }
  LAZYROPE_DEVICE bool has_row(int32 i) const {
    return kHasOneGroup ? lane_index() < Pairing::kUnits : first_ + i < kRows;
  }

  LAZYROPE_DEVICE void keep_unrotated() const {
    if constexpr (kOtherRuns > 0) {
#pragma unroll 1
      for (int32 i = lane_index(); i < kRows * kOtherRuns; i += kWarpThreads) {
        const SharedPtr run =
            rows_.template run<kRunColumns>(i / kOtherRuns, kRotatedRuns + i % kOtherRuns);
        st_global(image<Run>(run), ld_shared<Run>(run));
      }
    }
  }

  template <class T>
  LAZYROPE_DEVICE T* image(SharedPtr place) const {
    return reinterpret_cast<T*>(kept_ + (place.address - rows_.tile.address));
  }
  // Of a unit, until it is turned.
  LAZYROPE_DEVICE SharedPtr place(int32 row) const {
    return rows_.template run<2 * kRunColumns>(row, unit_);
  }
  // From the lane's row i on.
  LAZYROPE_DEVICE void load(Unit (&units)[kFour], int32 i) const {
    if (!has_row(i)) return;
    const SharedPtr first = place(row(i));
#pragma unroll
    for (int32 k = 0; k < kFour; ++k) units[k] = ld_shared<Unit>(Tile::below(first, k));
  }

  // Of the units of four rows, and loads those of the next, if there are.
  LAZYROPE_DEVICE void turn_four(Unit (&units)[kFour], int32 i, const Rotation& rotation) const {
    Unit present[kFour];
#pragma unroll
    for (int32 k = 0; k < kFour; ++k) present[k] = units[k];
    if (i + kFour < kShare) load(units, i + kFour);
    if (!has_row(i)) return;
    const UnitRuns first = rows_.template runs<Pairing>(row(i), unit_);
#pragma unroll
    for (int32 k = 0; k < kFour; ++k) turn(RowsOf<Tile>::below(first, k), present[k], rotation);
  }

  LAZYROPE_DEVICE static Unit joined(const Run& a, const Run& b) {
    constexpr int kWords = Pairing::kPairs / 2;
    Unit unit;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      unit.word[i] = a.word[i];
      unit.word[kWords + i] = b.word[i];
    }
    return unit;
  }
  LAZYROPE_DEVICE static void turn(UnitRuns to, const Unit& unit, const Rotation& rotation) {
    constexpr int kWords = Pairing::kPairs / 2;
    Run a;
    Run b;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      a.word[i] = unit.word[i];
      b.word[i] = unit.word[kWords + i];
    }
    rotation.apply(a, b);
    st_shared(to.a, a);
    st_shared(to.b, b);
  }

  RowsOf<Tile> rows_;
  uint8* kept_;
  int32 unit_;
  int32 first_;  // row of the lane
};

}  // namespace lazyrope
