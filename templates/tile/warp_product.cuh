// Products of one warp by mma.m16n8k16. An accumulator float[kRowTiles][kColumnTiles][4] consists
// of tiles of 16 rows by 8 columns. Register i of a lane is in row
//   row_of(lane, i) = lane / 4 + 8 (i / 2)
// and column
//   column_of(lane, i) = 2 (lane % 4) + i % 2
// of its tile.
#pragma once

#include "isa/math.cuh"
#include "isa/sync.cuh"
#include "tile/shared_tile.cuh"

namespace lazyrope {

LAZYROPE_DEVICE int32 row_of(int32 lane, int32 i) { return (lane >> 2) + (i >> 1) * 8; }
LAZYROPE_DEVICE int32 column_of(int32 lane, int32 i) { return (lane & 3) * 2 + (i & 1); }

// The distribution of query rows over the lanes of a warp. A lane has two rows of row tile m, h = 0
// and 1. The columns of a row are in four neighbouring lanes.
struct RowLanes {
  LAZYROPE_DEVICE static int32 row(int m, int h) { return m * 16 + row_of(lane_index(), 2 * h); }
  // Tells whether the lane is the first of those that share a row.
  LAZYROPE_DEVICE static bool is_first() { return lane_index() % 4 == 0; }
  LAZYROPE_DEVICE static bool is_first_of_row() { return is_first(); }
  // The lanes of a warp that share a row differ in these bits of their index.
  static constexpr int kFirstMask = 1;
  static constexpr int kEndMask = 4;
  LAZYROPE_DEVICE static float maximum(float of_lane) {
    const float pair = max_f32(of_lane, shfl_sync_bfly(of_lane, 1));
    return max_f32(pair, shfl_sync_bfly(pair, 2));
  }
  LAZYROPE_DEVICE static float sum(float of_lane) {
    const float pair = of_lane + shfl_sync_bfly(of_lane, 1);
    return pair + shfl_sync_bfly(pair, 2);
  }

  // The lane has columns first_column() + 8 n + i of column tile n, i = 0 and 1.
  LAZYROPE_DEVICE static int32 first_column() { return column_of(lane_index(), 0); }
  static constexpr int32 column_offset(int n, int i) { return 8 * n + i; }
  // Returns a mask of the lane's columns before `end`, which counts from the lane's first column.
  // Bit 2n + i stands for column i of column tile n.
  LAZYROPE_DEVICE static uint32 columns_before(int32 end) {
    const int32 columns = larger(end, 0);
    const int32 count = columns / 8 * 2 + smaller(columns % 8, 2);
    return count < 32 ? (1u << count) - 1 : ~0u;
  }
};

// Uniform access to the accumulators of all products: row tile m, column tile n, register i.
template <class Tile>
struct TileAccess;
template <int kRows, int kColumns>
struct TileAccess<float[kRows][kColumns][4]> : RowLanes {
  using Tile = float[kRows][kColumns][4];
  static constexpr int kRowTiles = kRows;
  static constexpr int kColumnTiles = kColumns;
  LAZYROPE_DEVICE static float& at(Tile& tile, int m, int n, int i) { return tile[m][n][i]; }
  LAZYROPE_DEVICE static float at(const Tile& tile, int m, int n, int i) { return tile[m][n][i]; }
};

template <int kRowTiles, int kColumnTiles>
LAZYROPE_DEVICE void set_zero(float (&tile)[kRowTiles][kColumnTiles][4]) {
#pragma unroll
  for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
    for (int n = 0; n < kColumnTiles; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) tile[m][n][i] = 0.0f;
}

// Rounds the softmax weights of 16 keys, two accumulator tiles, to a fragment of operand A.
template <class Element, int kKeyTiles>
LAZYROPE_DEVICE void pack_weights(uint32 (&a)[4], const float (&weights)[kKeyTiles][4],
                                  int sixteens) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const float (&w)[4] = weights[2 * sixteens + i / 2];
    a[i] = Element::pack(w[i % 2 * 2], w[i % 2 * 2 + 1]);
  }
}

// Products with keys and values of the queries' element type. The caller gives fragment addresses
// of the tiles of keys and values, and a class of tile/query_fragments.cuh for the queries.
template <class Element, int kHeadDim>
struct WarpProduct {
  using QueryTile = SharedTile<kHeadDim>;
  using StoredTile = SharedTile<kHeadDim>;  // elements as the pool stores them
  using KvTile = SharedTile<kHeadDim>;      // elements as products take them
  static constexpr bool kScaled = false;    // the pool's elements must be multiplied by its scales
  static constexpr bool kWidens = false;    // blocks are widened in shared memory before their use
  static constexpr int kColumnTiles = QueryTile::kChunks;

  LAZYROPE_DEVICE static SharedPtr query_fragment(SharedPtr tile, int32 lane) {
    return QueryTile::fragment(tile, lane);
  }
  LAZYROPE_DEVICE static void load_query(uint32 (&a)[4], SharedPtr fragment) {
    ldmatrix_x4(a, fragment);
  }

  // scores = queries x keys^T.
  template <int kRowTiles, int kKeyTiles, class Queries>
  LAZYROPE_DEVICE static void multiply_query_key(float (&scores)[kRowTiles][kKeyTiles][4],
                                                 const Queries& queries, SharedPtr keys) {
    set_zero(scores);
#pragma unroll Queries::kUnroll
    for (int step = 0; step < KvTile::kSixteens; ++step) {
      uint32 a[kRowTiles][4];
      queries.load(a, step);
#pragma unroll
      for (int n = 0; n < kKeyTiles / 2; ++n) {
        uint32 b[4];
        ldmatrix_x4(b, KvTile::rows(KvTile::columns(keys, step), n));
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          Element::mma(scores[m][2 * n], a[m], b[0], b[1]);
          Element::mma(scores[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // rows += weights x values. The weights are an accumulator and are rounded here to the element
  // type.
  template <int kRowTiles, int kKeyTiles>
  LAZYROPE_DEVICE static void multiply_weight_value(float (&rows)[kRowTiles][kColumnTiles][4],
                                                    const float (&weights)[kRowTiles][kKeyTiles][4],
                                                    SharedPtr values) {
#pragma unroll
    for (int step = 0; step < kKeyTiles / 2; ++step) {
      uint32 a[kRowTiles][4];
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) pack_weights<Element>(a[m], weights[m], step);
#pragma unroll
      for (int n = 0; n < KvTile::kSixteens; ++n) {
        uint32 b[4];
        ldmatrix_x4_trans(b, KvTile::rows(KvTile::columns(values, n), step));
#pragma unroll
        for (int m = 0; m < kRowTiles; ++m) {
          Element::mma(rows[m][2 * n], a[m], b[0], b[1]);
          Element::mma(rows[m][2 * n + 1], a[m], b[2], b[3]);
        }
      }
    }
  }

  // Stores the lane's columns of row row_of(lane, 2 * half) of a row tile as fp32.
  LAZYROPE_DEVICE static void store_partial_row(SharedPtr record,
                                                const float (&rows)[kColumnTiles][4], int32 lane,
                                                int half) {
    const SharedPtr to = record + column_of(lane, 0) * 4;
#pragma unroll
    for (int n = 0; n < QueryTile::kFilledChunks; ++n)
      st_shared(to + n * 32, FloatPair{rows[n][2 * half], rows[n][2 * half + 1]});
  }
};

}  // namespace lazyrope
