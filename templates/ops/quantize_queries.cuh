// Rounds query rows to 8 bits (e4m3), each with a scale that multiplies its scores.
//
// The scale is a power of two. It is chosen from the greatest magnitude of the row, so that it is
// the same for all documents: a rotation makes a column at most sqrt(2) times as great. With this
// scale the greatest element is from 128 to 256 before a further rotation, and at most 362 after
// it; the largest number is 448. Numbers of 8 bits have an exponent, so that a smaller scale would
// not make them more accurate.
//
// A row with an infinite element or a NaN has the scale NaN, and so have its scores.
#pragma once

#include "ops/rotate_tile.cuh"

namespace lazyrope {

// The scale of a row. Shared memory has its exponent alone, one byte for each row.
struct QueryScale {
  uint32 exponent;  // the biased exponent of the scale in fp32; kNan: the scale is NaN

  // `magnitude` is the greatest of the row.
  LAZYROPE_DEVICE static QueryScale of(float magnitude) {
    constexpr uint32 kLeast = 8;  // keeps the inverse finite
    const uint32 exponent = larger(float_as_bits(magnitude) >> 23, kLeast);
    return {exponent == kNan ? kNan : exponent - 7};
  }
  LAZYROPE_DEVICE static QueryScale load(SharedPtr scales, int32 row) {
    const uint32 four = ld_shared<uint32>(scales + row / 4 * 4);
    return {four >> row % 4 * 8 & 0xffu};
  }

  LAZYROPE_DEVICE float value() const {
    return bits_as_float(exponent == kNan ? 0x7fc00000u : exponent << 23);
  }
  LAZYROPE_DEVICE float inverse() const {
    return bits_as_float((exponent == kNan ? 0u : 254u - exponent) << 23);
  }

 private:
  static constexpr uint32 kNan = 255;
};

// Rows of `Original`, 16-bit elements, are rounded to rows of `Tile`, whose chunks have 16 elements
// of 8 bits. One warp takes part, and its rows are `first` to first + kRows - 1; kRows and `first`
// are multiples of 8. `scales` has one byte for each row.
template <class Spec, class Tile, class Original, int kRows>
class QueryQuantizer {
  using Element = typename Spec::Element;
  using Packed = TileRotation<Spec>;
  using Pairing = typename Packed::Pairing;
  using Run = typename Packed::Run;
  static constexpr int kOctet = 8;
  static constexpr int kRowLanes = kWarpThreads / kOctet;
  static constexpr int kChunks = Spec::kHeadDim / 16;
  static constexpr int kLaneChunks = ceil_div(kChunks, kRowLanes);

 public:
  LAZYROPE_DEVICE QueryQuantizer(SharedPtr original, int32 first)
      : original_(original), first_(first) {}

  // Rounds all columns to `tile`. With kStoresScales, it also stores the rows' scales.
  template <bool kStoresScales>
  LAZYROPE_DEVICE void quantize(SharedPtr tile, SharedPtr scales) const {
    const int32 lane = lane_index();
#pragma unroll 1
    for (int32 octet = 0; octet < kRows; octet += kOctet) {
      const int32 row = first_ + octet + lane / kRowLanes;
      Chunk chunks[kLaneChunks][2];
#pragma unroll
      for (int k = 0; k < kLaneChunks; ++k) load(chunks[k], row, chunk_of(k));
      const QueryScale scale = QueryScale::of(greatest(chunks));
      if constexpr (kStoresScales) store_scales(scales + (first_ + octet), scale);
#pragma unroll
      for (int k = 0; k < kLaneChunks; ++k)
        if (chunk_of(k) < kChunks)
          st_shared(Tile::chunk(tile, row, chunk_of(k)), rounded(chunks[k], scale.inverse()));
    }
  }

  // Rotates all rotated columns and rounds them to `tile`.
  LAZYROPE_DEVICE void rotate(SharedPtr tile, SharedPtr scales, const Packed& rotation) const {
    constexpr int32 kGroups = kWarpThreads / Pairing::kUnits;
    const int32 group = lane_index() / Pairing::kUnits;
    if (group >= kGroups) return;  // some lanes are left if kUnits does not divide a warp
    const int32 unit = lane_unit<Pairing>();
    const RowsOf<Original> from(original_);
#pragma unroll 1
    for (int32 i = group; i < kRows; i += kGroups) {
      const int32 row = first_ + i;
      const UnitRuns runs = from.template runs<Pairing>(row, unit);
      Run a = ld_shared<Run>(runs.a);
      Run b = ld_shared<Run>(runs.b);
      rotation.apply(a, b);
      const float inverse = QueryScale::load(scales, row).inverse();
      store_run(tile, row, Pairing::run_a(unit), a, inverse);
      store_run(tile, row, Pairing::run_b(unit), b, inverse);
    }
  }

 private:
  LAZYROPE_DEVICE static int32 chunk_of(int k) { return lane_index() % kRowLanes + k * kRowLanes; }

  // Stores the scales of eight rows, each of which is in kRowLanes neighbouring lanes.
  LAZYROPE_DEVICE static void store_scales(SharedPtr to, const QueryScale& scale) {
    const int32 lane = lane_index();
    uint32 four = scale.exponent << lane / kRowLanes % 4 * 8;
    four |= shfl_sync_bfly(four, kRowLanes);
    four |= shfl_sync_bfly(four, 2 * kRowLanes);
    if (lane % 16 == 0) st_shared(to + lane / 16 * 4, four);
  }

  // Loads the 16 columns of a chunk of the tile, or zeros if the row has no such chunk.
  LAZYROPE_DEVICE void load(Chunk (&columns)[2], int32 row, int32 chunk) const {
#pragma unroll
    for (int i = 0; i < 2; ++i)
      columns[i] = chunk < kChunks
                       ? ld_shared<Chunk>(Original::chunk(original_, row, 2 * chunk + i))
                       : Chunk{};
  }

  // Returns the greatest magnitude of a row, of which each lane has some columns.
  LAZYROPE_DEVICE static float greatest(const Chunk (&chunks)[kLaneChunks][2]) {
    uint32 pair = 0;
#pragma unroll
    for (int k = 0; k < kLaneChunks; ++k)
#pragma unroll
      for (int i = 0; i < 8; ++i)
        pair = max_u16x2(pair, chunks[k][i / 4].word[i % 4] & 0x7fff7fffu);
    pair = max_u16x2(pair, shfl_sync_bfly(pair, 1));
    pair = max_u16x2(pair, shfl_sync_bfly(pair, 2));
    return Element::unpack(max_u16x2(pair, pair >> 16)).low;
  }

  // Rounds four columns, the elements of two words.
  LAZYROPE_DEVICE static uint32 rounded(uint32 low, uint32 high, float inverse) {
    const FloatPair a = Element::unpack(low);
    const FloatPair b = Element::unpack(high);
    return Spec::Product::narrow(a.low * inverse, a.high * inverse, b.low * inverse,
                                 b.high * inverse);
  }
  LAZYROPE_DEVICE static Chunk rounded(const Chunk (&columns)[2], float inverse) {
    Chunk chunk;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const Chunk& from = columns[i / 2];
      chunk.word[i] = rounded(from.word[i % 2 * 2], from.word[i % 2 * 2 + 1], inverse);
    }
    return chunk;
  }

  // Stores a run of kPairs columns.
  LAZYROPE_DEVICE static void store_run(SharedPtr tile, int32 row, int32 run, const Run& columns,
                                        float inverse) {
    constexpr int32 kRunColumns = Pairing::kPairs;
    const SharedPtr to = Tile::chunk(tile, row, run * kRunColumns / 16) + run * kRunColumns % 16;
    static_assert(kRunColumns % 4 == 0, "rotary_dim is a multiple of 8");
    Words<kRunColumns / 4> words;
#pragma unroll
    for (int i = 0; i < kRunColumns / 4; ++i)
      words.word[i] = rounded(columns.word[2 * i], columns.word[2 * i + 1], inverse);
    st_shared(to, words);
  }

  SharedPtr original_;
  int32 first_;
};

}  // namespace lazyrope
