// Products of one warp with keys and values of 8 bits.
//
// If the warps of a CTA divide the rows, each warp needs every key, so the CTA widens a block once
// in shared memory (WidenedProduct). If the warps divide the keys, each warp widens its own keys in
// registers (Fp8Product).
//
// In Fp8Product, ldmatrix gives a lane four neighbouring bytes of a key, but mma.m16n8k16 takes two
// pairs of columns that are 8 apart. The order of the columns does not matter to a product, so a
// lane takes the same columns of the queries: 4t, 4t + 2, 4t + 1, 4t + 3 with t = lane % 4. For
// values, the transposed ldmatrix gives a lane two neighbouring columns of two values. Accumulator
// tile 2n therefore has the even columns of 16n to 16n + 15, and tile 2n + 1 the odd ones.
#pragma once

#include "tile/fp8.cuh"
#include "tile/warp_product.cuh"

namespace lazyrope {

template <class Element, class FormatType, int kHeadDim>
struct Fp8Product {
  using Format = FormatType;
  using QueryTile = SharedTile<kHeadDim>;
  using StoredTile = SharedTile<kHeadDim, 1>;
  using KvTile = StoredTile;
  static constexpr bool kScaled = true;
  static constexpr bool kWidens = false;
  static constexpr int kColumnTiles = QueryTile::kChunks;

  // Returns the address of the lane's columns of row lane / 4.
  LAZYROPE_DEVICE static SharedPtr query_fragment(SharedPtr tile, int32 lane) {
    return QueryTile::chunk(tile, lane >> 2, (lane & 3) >> 1) + (lane & 1) * 8;
  }

  LAZYROPE_DEVICE static void load_query(uint32 (&a)[4], SharedPtr fragment) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const Word2 columns = ld_shared<Word2>(fragment + half * 8 * QueryTile::kRowBytes);
      a[half] = (columns.word[0] & 0xffffu) | columns.word[1] << 16;
      a[2 + half] = columns.word[0] >> 16 | (columns.word[1] & 0xffff0000u);
    }
  }

  template <int kRowTiles, int kKeyTiles, class Queries>
  LAZYROPE_DEVICE static void multiply_query_key(float (&scores)[kRowTiles][kKeyTiles][4],
                                                 const Queries& queries, SharedPtr keys) {
    static_assert(kKeyTiles % 4 == 0);
    set_zero(scores);
#pragma unroll Queries::kUnroll
    for (int step = 0; step < KvTile::kSixteens; ++step) {
      uint32 a[kRowTiles][4];
      queries.load(a, step);
#pragma unroll
      for (int n = 0; n < kKeyTiles; n += 4) {
        uint32 bytes[4];
        ldmatrix_x4(bytes, KvTile::rows(KvTile::columns(keys, step), n / 2));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const BytePairs b = Format::template widen<Element>(bytes[i]);
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) Element::mma(scores[m][n + i], a[m], b.even, b.odd);
        }
      }
    }
  }

  template <int kRowTiles, int kKeyTiles>
  LAZYROPE_DEVICE static void multiply_weight_value(float (&rows)[kRowTiles][kColumnTiles][4],
                                                    const float (&weights)[kRowTiles][kKeyTiles][4],
                                                    SharedPtr values) {
#pragma unroll
    for (int step = 0; step < kKeyTiles / 4; ++step) {
      uint32 a[2][kRowTiles][4];
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m)
          pack_weights<Element>(a[half][m], weights[m], 2 * step + half);
#pragma unroll
      for (int n = 0; n < KvTile::kSixteens; ++n) {
        uint32 bytes[4];
        ldmatrix_x4_trans(bytes, KvTile::rows(KvTile::columns(values, n), 2 * step));
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const BytePairs low = Format::template widen<Element>(bytes[2 * half]);
          const BytePairs high = Format::template widen<Element>(bytes[2 * half + 1]);
#pragma unroll
          for (int m = 0; m < kRowTiles; ++m) {
            Element::mma(rows[m][2 * n], a[half][m], low.even, high.even);
            Element::mma(rows[m][2 * n + 1], a[half][m], low.odd, high.odd);
          }
        }
      }
    }
  }

  // Stores row row_of(lane, 2 * half) of a row tile, with its columns in order.
  LAZYROPE_DEVICE static void store_partial_row(SharedPtr record,
                                                const float (&rows)[kColumnTiles][4], int32 lane,
                                                int half) {
    const SharedPtr to = record + (lane & 3) * 16;
#pragma unroll
    for (int n = 0; n < KvTile::kSixteens; ++n) {
      const float (&even)[4] = rows[2 * n];
      const float (&odd)[4] = rows[2 * n + 1];
      st_shared(to + n * 64,
                Chunk{{float_as_bits(even[2 * half]), float_as_bits(odd[2 * half]),
                       float_as_bits(even[2 * half + 1]), float_as_bits(odd[2 * half + 1])}});
    }
  }
};

// Products with keys and values that the CTA has widened in shared memory.
template <class Element, class FormatType, int kHeadDim>
struct WidenedProduct : WarpProduct<Element, kHeadDim> {
  using Format = FormatType;
  using StoredTile = SharedTile<kHeadDim, 1>;
  using WideTile = SharedTile<kHeadDim>;
  static constexpr bool kScaled = true;
  static constexpr bool kWidens = true;

  // Widens the chunks rank, rank + kThreads, ... of kRows rows.
  template <int kRows, int kThreads>
  LAZYROPE_DEVICE static void widen(SharedPtr to, SharedPtr from, int32 rank) {
#pragma unroll 1
    for (int32 i = rank; i < kRows * StoredTile::kChunks; i += kThreads) {
      const int32 row = i / StoredTile::kChunks;
      const int32 chunk = i % StoredTile::kChunks;
      const Chunk bytes = ld_shared<Chunk>(StoredTile::chunk(from, row, chunk));
#pragma unroll
      for (int half = 0; half < 2; ++half)
        st_shared(WideTile::chunk(to, row, 2 * chunk + half),
                  Format::template widen_in_order<Element>(bytes.word[2 * half],
                                                           bytes.word[2 * half + 1]));
    }
  }
};

}  // namespace lazyrope
