// Products of one warpgroup by wgmma: with 64 query rows (WgmmaProduct), or transposed, with fewer
// queries as columns (TransposedWgmmaProduct). The calls only issue the products; the caller
// commits and waits for them.
#pragma once

#include "tile/weight_range.cuh"
#include "tile/wgmma_tile.cuh"

namespace lazyrope {

struct Bf16;

template <class Element>
struct WgmmaElement {
  using Type = WgmmaF16;
};
template <>
struct WgmmaElement<Bf16> {
  using Type = WgmmaBf16;
};

template <class Element, int kHeadDim>
struct WgmmaProduct {
  // Layouts of queries, and of kKeys keys or values.
  using QueryTile = QueryWgmmaTile<kHeadDim>;
  template <int kKeys>
  using Keys = KeyTile<kHeadDim, kKeys>;
  template <int kKeys>
  using Values = ValueTile<kHeadDim, kKeys>;
  // If true, columns kHeadDim to kHeadDim + 7 of the rows are sums of the softmax weights, because
  // the values are 1 there.
  static constexpr bool kAddsWeights = adds_weights(true, kHeadDim);
  // If true, are_at_most() tells whether the maxima were great enough for packed weights.
  static constexpr bool kChecksWeights = kAddsWeights;
  using Rows = WideAccumulator<row_columns(kHeadDim)>;
  using Type = typename WgmmaElement<Element>::Type;
  using WeightRange = WideWeights;
  static constexpr bool kScaled = false;
  static constexpr bool kWidens = false;
  static constexpr bool kFloat8 = false;
  static constexpr int kKeysPerOperand = 16;  // keys of one OperandA of weights

  // scores = queries x keys^T for kKeys keys. The descriptors are made by columns() of the tiles.
  template <int kKeys>
  LAZYROPE_DEVICE static void multiply_query_key(Accumulator<kKeys>& scores,
                                                 SharedDescriptor queries, SharedDescriptor keys) {
    constexpr int kSteps = query_columns(kHeadDim) / 16;
    SharedDescriptor a[kSteps], b[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      a[step] = QueryTile::offset_by(queries, step);
      b[step] = Keys<kKeys>::offset_by(keys, step);
    }
    wgmma_m64k16<Type, kKeys, Major::kK, Major::kK>(scores, a, b, false);
  }

  // Does the same, from zero, for the 16 queries from `row` on, by one warp alone with
  // mma.m16n8k16.
  template <int kKeys>
  LAZYROPE_DEVICE static void multiply_query_key_by_warp(Accumulator<kKeys>& scores,
                                                         SharedPtr queries, int32 row,
                                                         SharedPtr keys) {
    const int32 lane = lane_index();
    float tiles[kKeys / 8][4] = {};
#pragma unroll 1
    for (int32 step = 0; step < query_columns(kHeadDim) / 16; ++step) {
      uint32 a[4];
      ldmatrix_x4(a, QueryTile::chunk(queries, row + lane % 16, 2 * step + lane / 16));
      const SharedPtr eights =
          Keys<kKeys>::chunk(keys, lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        uint32 b[4];
        ldmatrix_x4(b, Keys<kKeys>::advance_sixteens(eights, 2 * step + lane / 8 % 2, n));
        Element::mma(tiles[2 * n], a, b[0], b[1]);
        Element::mma(tiles[2 * n + 1], a, b[2], b[3]);
      }
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[4 * n + i] = tiles[n][i];
  }

  // Adds the product of 16 more columns of queries and keys to the scores. The two chunks of a
  // key's columns are the same.
  template <int kKeys>
  LAZYROPE_DEVICE static void multiply_more_columns(Accumulator<kKeys>& scores,
                                                    SharedDescriptor queries,
                                                    SharedDescriptor keys) {
    const SharedDescriptor a[1] = {queries}, b[1] = {keys};
    wgmma_m64k16<Type, kKeys, Major::kK, Major::kK>(scores, a, b, true);
  }
  // Does the same by one warp alone, with queries that are all ones. `keys` are the chunks of the
  // keys.
  template <int kKeys>
  LAZYROPE_DEVICE static void add_columns_by_warp(Accumulator<kKeys>& scores, SharedPtr keys) {
    const uint32 one = Element::pack(1.0f, 1.0f);
    const uint32 ones[4] = {one, one, one, one};
#pragma unroll
    for (int n = 0; n < kKeys / 8; n += 4) {
      uint32 b[4];
      ldmatrix_x4(b, keys + smaller(8 * n + lane_index(), kKeys - 1) * 16);
#pragma unroll
      for (int i = 0; i < 4 && n + i < kKeys / 8; ++i) {
        float tile[4];
#pragma unroll
        for (int k = 0; k < 4; ++k) tile[k] = scores[4 * (n + i) + k];
        Element::mma(tile, ones, b[i], b[i]);
#pragma unroll
        for (int k = 0; k < 4; ++k) scores[4 * (n + i) + k] = tile[k];
      }
    }
  }

  // rows += weights x values. With kAddsWeights, `ones` is a panel of 16 rows of ones.
  template <int kKeys>
  LAZYROPE_DEVICE static void multiply_weight_value(Rows& rows,
                                                    const OperandA (&weights)[kKeys / 16],
                                                    SharedPtr values, SharedPtr ones) {
#pragma unroll
    for (int i = 0; i < Rows::kTiles; ++i) {
      SharedDescriptor b[kKeys / 16];
#pragma unroll
      for (int step = 0; step < kKeys / 16; ++step)
        b[step] = value_columns<kKeys>(values, ones, step, i);
      wgmma_m64k16<Type, Rows::kTileColumns, Major::kMN>(rows.tile[i], weights, b, true);
    }
  }
  // sums = the sums of the weights of each run of 16 keys. selector(run) is the operand that adds
  // the weights to column `run`.
  template <int kKeys, class Selector>
  LAZYROPE_DEVICE static void add_up_runs(Accumulator<8>& sums,
                                          const OperandA (&weights)[kKeys / 16],
                                          const Selector& selector) {
    static_assert(kKeys / 16 <= 8);
    SharedDescriptor b[kKeys / 16];
#pragma unroll
    for (int run = 0; run < kKeys / 16; ++run) b[run] = selector(run);
    wgmma_m64k16<Type, 8, Major::kK>(sums, weights, b, false);
  }
  // Returns the sum of a row's softmax weights. Every lane of the row has it.
  LAZYROPE_DEVICE static float& sum(Rows& rows, int h) { return rows[kHeadDim / 2 + 2 * h]; }

  template <int kKeys>
  LAZYROPE_DEVICE static void pack(OperandA (&packed)[kKeys / 16],
                                   const Accumulator<kKeys>& weights) {
#pragma unroll
    for (int step = 0; step < kKeys / 16; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i)
        packed[step][i] = Element::pack(weights[8 * step + 2 * i], weights[8 * step + 2 * i + 1]);
  }
  // Returns true if no weight is NaN or greater than `most`. Weights are not negative, so they may
  // be compared as integers.
  template <int kCount>
  LAZYROPE_DEVICE static bool are_at_most(const OperandA (&weights)[kCount], float most) {
    const uint32 limit = Element::pack(most, most);
    uint32 top = 0;
#pragma unroll
    for (int step = 0; step < kCount; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) top = max_u16x2(top, weights[step][i]);
    return max_u16x2(top, limit) == limit;
  }

 private:
  // Returns the descriptor of rows 16 * step and following of column tile i of the values.
  template <int kKeys>
  LAZYROPE_DEVICE static SharedDescriptor value_columns(SharedPtr values, SharedPtr ones, int step,
                                                        int i) {
    using Tile = Values<kKeys>;
    if constexpr (kAddsWeights) {
      return Tile::rows_beside(values, ones).start_moved(Tile::row_step(step));
    } else {
      constexpr int32 kTileBytes = Tile::kPanels / Rows::kTiles * Tile::panel_distance();
      return Tile::rows(values) + (Tile::row_step(step) + i * kTileBytes);
    }
  }
};

// The same, of keys and values that must be multiplied by their pool's scales.
template <class Element, int kHeadDim>
struct ScaledWgmmaProduct : WgmmaProduct<Element, kHeadDim> {
  static constexpr bool kScaled = true;
};

// Transposed products for few queries. The kQueries queries are the columns of D; its rows are 64
// keys, or 64 columns of values. The queries belong to kHeads KV heads, which are multiplied one by
// one. A tile has the keys, or the values, of kTileHeads heads side by side. The next kHeads heads
// of the tile start kColumnBytes further, and their queries kQueryBytes further.
template <class Element, int kHeadDim, int kQueries, int kHeads, int kTileHeads>
struct TransposedWgmmaProduct {
  using Tile = WgmmaTile<kTileHeads * kHeadDim>;  // layout of keys and values
  using QueryTile = WgmmaTile<kHeadDim>;
  using Accumulator = TransposedAccumulator<kQueries, kHeads>;
  using Type = typename WgmmaElement<Element>::Type;
  static constexpr bool kScaled = false;
  static constexpr bool kWidens = false;
  static constexpr bool kFloat8 = false;
  static constexpr int kKeys = 64;
  static constexpr int kDimTiles = kHeadDim / 64;
  static constexpr int kHeadQueries = kQueries / kHeads;
  static constexpr int kColumnBytes = kHeads * kDimTiles * Tile::kAtomBytes;
  static constexpr int kQueryBytes = QueryTile::bytes(kQueries);
  static_assert(kHeadDim % 64 == 0 && kQueries % (8 * kHeads) == 0);

  // The weight of query q and key k is at this byte of the softmax weights in shared memory:
  //   q / 8 * kEightBytes + k * kKeyBytes + q % 8 * 2.
  static constexpr int kKeyBytes = 16;
  static constexpr int kEightBytes = kKeys * kKeyBytes;
  static constexpr int kWeightBytes = kQueries / 8 * kEightBytes;

  // scores = keys x queries^T.
  LAZYROPE_DEVICE static void multiply_query_key(Accumulator& scores, SharedPtr queries,
                                                 SharedPtr keys) {
    constexpr int kSteps = kHeadDim / 16;
#pragma unroll
    for (int head = 0; head < kHeads; ++head) {
      const SharedPtr own = queries + head * QueryTile::bytes(kHeadQueries);
      SharedDescriptor a[kSteps], b[kSteps];
#pragma unroll
      for (int step = 0; step < kSteps; ++step) {
        a[step] = Tile::offset_by(Tile::columns(keys), head * kSteps + step);
        b[step] = QueryTile::offset_by(QueryTile::columns(own), step);
      }
      wgmma_m64k16<Type, kHeadQueries, Major::kK, Major::kK>(scores.tile[head], a, b, false);
    }
  }

  // rows += values^T x weights.
  LAZYROPE_DEVICE static void multiply_weight_value(Accumulator (&rows)[kDimTiles],
                                                    SharedPtr weights, SharedPtr values) {
    constexpr int kSteps = kKeys / 16;
    const SharedDescriptor described =
        shared_descriptor(weights, 8 * kKeyBytes, kEightBytes, Swizzle::kNone);
#pragma unroll
    for (int head = 0; head < kHeads; ++head)
#pragma unroll
      for (int tile = 0; tile < kDimTiles; ++tile) {
        const int panel = head * kDimTiles + tile;
        SharedDescriptor a[kSteps], b[kSteps];
#pragma unroll
        for (int step = 0; step < kSteps; ++step) {
          a[step] = Tile::rows(values) + (panel * Tile::kAtomBytes + Tile::row_step(step));
          b[step] = described + (head * (kHeadQueries / 8) * kEightBytes + step * 16 * kKeyBytes);
        }
        wgmma_m64k16<Type, kHeadQueries, Major::kMN, Major::kMN>(rows[tile].tile[head], a, b, true);
      }
  }

  // Stores this thread's softmax weights, rounded to the element type.
  LAZYROPE_DEVICE static void store(SharedPtr weights, const Accumulator& scores) {
    const int32 key = ColumnLanes::first_column();
    const SharedPtr to = weights + (key * kKeyBytes + column_of(lane_index(), 0) * kElementBytes);
#pragma unroll
    for (int m = 0; m < kQueries / 8; ++m)
#pragma unroll
      for (int i = 0; i < 2; ++i)
        st_shared(to + (m * kKeys + ColumnLanes::column(i)) * kKeyBytes,
                  Element::pack(scores[4 * m + 2 * i], scores[4 * m + 2 * i + 1]));
  }
};

}  // namespace lazyrope
