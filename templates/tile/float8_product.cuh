// Products of one warpgroup, with 64 query rows, by wgmma with elements of 8 bits (e4m3): queries
// and softmax weights are rounded to 8 bits, and keys and values are the pool's own. As in
// WgmmaProduct, the calls only issue the products; the caller commits and waits for them.
//
// A row of queries or keys is head_dim bytes, as many as a row of head_dim / 2 elements of 16 bits.
// So the tiles are WgmmaTile of half the columns.
//
// wgmma takes 8-bit operands K-major only, so values must be transposed: row d of the transposed
// tile has column d of all keys. A thread's scores are those of keys 2t, 2t + 1, 2t + 8 and 2t + 9
// of each 16, t = lane % 4, while operand A has four neighbouring bytes along K. The order along K
// does not matter to a product. So the transposed tile has the keys of each 16 in this order:
//   0 1 8 9  2 3 10 11  4 5 12 13  6 7 14 15,
// and a thread packs its own weights without an exchange.
#pragma once

#include "isa/float8.cuh"
#include "tile/fp8.cuh"
#include "tile/wgmma_tile.cuh"

namespace lazyrope {

template <class Element, int kHeadDim>
struct Float8Product {
  using Format = E4m3;
  using Tile = WgmmaTile<kHeadDim / 2>;  // layout of queries, keys and stored values
  using Rows = WideAccumulator<kHeadDim>;
  static constexpr bool kAddsWeights = false;
  static constexpr bool kChecksWeights = false;  // sums_fit() checks their sums
  static constexpr bool kScaled = true;
  static constexpr bool kWidens = false;
  static constexpr bool kFloat8 = true;
  static constexpr int kKeysPerOperand = 32;  // keys of one OperandA of weights

  // The range of weights. A score equal to the maximum when that was raised has the weight 2^3, so
  // that only weights below 2^-13 of that are rounded to zero. The weights of a lane's 32 keys of a
  // row then add up to 2^8 at most, unless later scores exceed the maximum. If they add up to more
  // than the largest number, 448, one of them is at least 14, which is above the threshold. So the
  // maximum is then raised. The lift is an integer, so that a row's only weight is not rounded.
  struct WeightRange {
    static constexpr float kLift = 3.0f;
    static constexpr float kRescaleThreshold = 3.5f;
  };

  // The bytes of a block's values that count, for one lane of transpose(): byte i of words[h] is
  // 0xff if key 32 w + 16 h + 8 (i / 2) + 2 (lane % 4) + i % 2 of the block is valid, for warp w.
  struct ValidBytes {
    uint32 words[2];

    LAZYROPE_DEVICE static ValidBytes all() { return {{~0u, ~0u}}; }
    LAZYROPE_DEVICE bool are_all() const { return (words[0] & words[1]) == ~0u; }
    // `begin` and `end` are the valid keys, counted from the lane's first key.
    LAZYROPE_DEVICE static ValidBytes of(int32 begin, int32 end) {
      ValidBytes valid = {{0, 0}};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int32 key = i / 4 * 16 + i / 2 % 2 * 8 + i % 2;
        if (key >= begin && key < end) valid.words[i / 4] |= 0xffu << i % 4 * 8;
      }
      return valid;
    }
  };

  // Rounds four numbers to elements, the first in the low byte.
  LAZYROPE_DEVICE static uint32 narrow(float a, float b, float c, float d) {
    return cvt_rn_satfinite_e4m3x2_f32(a, b, c, d);
  }

  // scores = queries x keys^T for kKeys keys. Both descriptors are made by Tile::columns().
  template <int kKeys>
  LAZYROPE_DEVICE static void multiply_query_key(Accumulator<kKeys>& scores,
                                                 SharedDescriptor queries, SharedDescriptor keys) {
    constexpr int kSteps = kHeadDim / 32;
    SharedDescriptor a[kSteps], b[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      a[step] = Tile::offset_by(queries, step);
      b[step] = Tile::offset_by(keys, step);
    }
    wgmma_m64k32(scores, a, b, false);
  }

  // Does the same, from zero, for the 16 queries from `row` on, by one warp alone with
  // mma.m16n8k16. Both operands are widened to fp16, which is exact. The widened columns are in
  // another order, the same for both.
  template <int kKeys>
  LAZYROPE_DEVICE static void multiply_query_key_by_warp(Accumulator<kKeys>& scores,
                                                         SharedPtr queries, int32 row,
                                                         SharedPtr keys) {
    const int32 lane = lane_index();
    float tiles[kKeys / 8][4] = {};
#pragma unroll 1
    for (int32 step = 0; step < kHeadDim / 32; ++step) {
      uint32 bytes[4];
      ldmatrix_x4(bytes, Tile::chunk(queries, row + lane % 16, 2 * step + lane / 16));
      uint32 a[2][4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const BytePairs pairs = Format::template widen<Fp16>(bytes[i]);
        a[i / 2][i % 2] = pairs.even;
        a[i / 2][2 + i % 2] = pairs.odd;
      }
      const SharedPtr eights = Tile::chunk(keys, lane % 8 + lane / 16 * 8, 2 * step + lane / 8 % 2);
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        ldmatrix_x4(bytes, eights + Tile::row_step(n));
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const BytePairs b = Format::template widen<Fp16>(bytes[i]);
          Fp16::mma(tiles[2 * n + i / 2], a[i % 2], b.even, b.odd);
        }
      }
    }
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) scores[4 * n + i] = tiles[n][i];
  }

  // rows += weights x values, of which `values` is the transposed tile.
  template <int kKeys>
  LAZYROPE_DEVICE static void multiply_weight_value(
      Rows& rows, const OperandA (&weights)[kKeys / kKeysPerOperand], SharedPtr values, SharedPtr) {
    using Transposed = WgmmaTile<kKeys / 2>;
    constexpr int kSteps = kKeys / kKeysPerOperand;
    static_assert(Rows::kTiles == 1);
    SharedDescriptor b[kSteps];
#pragma unroll
    for (int step = 0; step < kSteps; ++step)
      b[step] = Transposed::offset_by(Transposed::columns(values), step);
    wgmma_m64k32(rows.tile[0], weights, b, true);
  }

  template <int kKeys>
  LAZYROPE_DEVICE static void pack(OperandA (&packed)[kKeys / kKeysPerOperand],
                                   const Accumulator<kKeys>& weights) {
#pragma unroll
    for (int step = 0; step < kKeys / kKeysPerOperand; ++step)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int at = 16 * step + i / 2 * 8 + i % 2 * 2;
        packed[step][i] = narrow(weights[at], weights[at + 1], weights[at + 4], weights[at + 5]);
      }
  }
  // Returns true if no weight of a lane exceeds the largest number, 448, and none is NaN. `sums`
  // are those of the lane's weights in its two rows. Weights are not negative, so none of them
  // exceeds its sum.
  LAZYROPE_DEVICE static bool sums_fit(const float (&sums)[2]) {
    return sums[0] <= 448.0f && sums[1] <= 448.0f;
  }

  // Transposes the values of kKeys = 128 keys in place. Four warps take part, with their number in
  // `warp`, and each has 32 keys. `sync` synchronizes the four. Bytes that are not valid become
  // zero.
  //
  // The transposed ldmatrix gives a lane two neighbouring columns of two keys. Lanes below 16 store
  // the even column first and the others the odd one, so that the rows that they write at the same
  // time are in different banks.
  template <int kKeys, class Sync>
  LAZYROPE_DEVICE static void transpose(SharedPtr values, int32 warp, const ValidBytes& valid,
                                        const Sync& sync) {
    using Transposed = WgmmaTile<kKeys / 2>;
    static_assert(kKeys == 128 && Transposed::kPanels == 1);
    constexpr int kChunks = kHeadDim / 16;
    const int32 lane = lane_index();
    uint32 bytes[kChunks][4];
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
      ldmatrix_x4_trans(bytes[c], Tile::chunk(values, warp * 32 + lane, c));
    sync();
    if (!valid.are_all()) clear_invalid<kChunks>(bytes, valid);
    const uint32 order[2] = {lane < 16 ? 0x6420u : 0x7531u, lane < 16 ? 0x7531u : 0x6420u};
    const int32 row = lane / 4 * 2 + lane / 16;  // the row of the first store
    const SharedPtr to[2] = {Transposed::chunk(values, row, 2 * warp) + lane % 4 * 4,
                             Transposed::chunk(values, row ^ 1, 2 * warp) + lane % 4 * 4};
#pragma unroll
    for (int c = 0; c < kChunks; ++c)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int i = 0; i < 2; ++i)
          st_shared((to[i] ^ h * 16) + Transposed::bytes(16 * c),
                    prmt_b32(bytes[c][2 * h], bytes[c][2 * h + 1], order[i]));
  }

 private:
  // Clears the bytes of invalid keys. A register has two columns of two neighbouring keys, and the
  // next register those of keys 8 further.
  template <int kChunks>
  LAZYROPE_DEVICE static void clear_invalid(uint32 (&bytes)[kChunks][4], const ValidBytes& valid) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const uint32 mask = prmt_b32(valid.words[i / 2], 0, i % 2 == 0 ? 0x1100u : 0x3322u);
#pragma unroll
      for (int c = 0; c < kChunks; ++c) bytes[c][i] &= mask;
    }
  }
};

}  // namespace lazyrope
