// Products of one warp by mma.m16n8k16. An accumulator tile [kRowTiles][n][4] covers 16 rows by 8
// columns each: register i of a lane is row row_of(lane, i), column column_of(lane, i).
#pragma once

#include "tile/shared_tile.cuh"

namespace lazyrope {

LAZYROPE_DEVICE int32 row_of(int32 lane, int32 i) { return (lane >> 2) + (i >> 1) * 8; }
LAZYROPE_DEVICE int32 column_of(int32 lane, int32 i) { return (lane & 3) * 2 + (i & 1); }

// scores = queries x keys^T; both given by fragment addresses of row-major tiles.
template <class Element, int kHeadDim, int kRowTiles, int kKeyTiles>
LAZYROPE_DEVICE void multiply_query_key(float (&scores)[kRowTiles][kKeyTiles][4], SharedPtr queries,
                                        SharedPtr keys) {
  using Tile = SharedTile<kHeadDim>;
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[m][n][i] = 0.0f;
#pragma unroll 2
  for (int step = 0; step < Tile::kSixteens; ++step) {
    uint32 a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
      ldmatrix_x4(a[m], Tile::rows(Tile::columns(queries, step), m));
#pragma unroll
    for (int n = 0; n < kKeyTiles / 2; ++n) {
      uint32 b[4];
      ldmatrix_x4(b, Tile::rows(Tile::columns(keys, step), n));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        Element::mma(scores[m][2 * n], a[m], b[0], b[2]);
        Element::mma(scores[m][2 * n + 1], a[m], b[1], b[3]);
      }
    }
  }
}

// rows += weights x values; the weights are an accumulator tile, rounded here to the element type.
template <class Element, int kHeadDim, int kRowTiles, int kKeyTiles>
LAZYROPE_DEVICE void multiply_weight_value(
    float (&rows)[kRowTiles][SharedTile<kHeadDim>::kChunks][4],
    const float (&weights)[kRowTiles][kKeyTiles][4], SharedPtr values) {
  using Tile = SharedTile<kHeadDim>;
#pragma unroll
  for (int step = 0; step < kKeyTiles / 2; ++step) {
    uint32 a[kRowTiles][4];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float (&w)[4] = weights[m][2 * step + i / 2];
        a[m][i] = Element::pack(w[i % 2 * 2], w[i % 2 * 2 + 1]);
      }
#pragma unroll
    for (int n = 0; n < Tile::kSixteens; ++n) {
      uint32 b[4];
      ldmatrix_x4_trans(b, Tile::rows(Tile::columns(values, n), step));
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) {
        Element::mma(rows[m][2 * n], a[m], b[0], b[1]);
        Element::mma(rows[m][2 * n + 1], a[m], b[2], b[3]);
      }
    }
  }
}

}  // namespace lazyrope
