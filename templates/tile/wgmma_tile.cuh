// A tile of 16-bit elements in shared memory for wgmma, with its rows along M, N or K. A row is
// divided into panels of kPanelBytes, 128, 64 or 32. Chunk c (16 bytes) of row r, with
// n = kPanelBytes / 16 chunks in a panel, is at byte
//   r / 8 * kOctetBytes + c / n * kAtomBytes + r % 8 * kPanelBytes + (c % n ^ s) * 16,
// where s = r % 8 * kPanelBytes / 128 is the swizzle. Eight rows are thus contiguous, so that one
// copy writes them. The tile is aligned to 1024 bytes.
#pragma once

#include "abi/attend_tma.h"
#include "isa/wgmma.cuh"
#include "tile/warp_product.cuh"

namespace lazyrope {

template <int kColumns>
struct WgmmaTile {
  static constexpr int kPanelBytes = panel_bytes(kColumns);
  static constexpr int kChunks = kColumns * kElementBytes / 16;  // chunks of a row
  static constexpr int kFilledChunks = kChunks;
  static constexpr int kPanels = kColumns * kElementBytes / kPanelBytes;
  static constexpr Swizzle kSwizzle = kPanelBytes == 128  ? Swizzle::k128B
                                      : kPanelBytes == 64 ? Swizzle::k64B
                                                          : Swizzle::k32B;
  static constexpr int kAtomBytes = kOctetSlots * kPanelBytes;
  static constexpr int kOctetBytes = kPanels * kAtomBytes;
  static_assert(kPanels * kPanelBytes == kColumns * kElementBytes);

  static constexpr int bytes(int rows) { return rows / kOctetSlots * kOctetBytes; }

  LAZYROPE_DEVICE static SharedPtr chunk(SharedPtr tile, int32 row, int32 chunk) {
    constexpr uint32 kPanelChunks = kPanelBytes / 16;
    // Unsigned, because remainders are cheap then. The terms are added separately: chunks with the
    // same index in two panels differ in the last term alone.
    const uint32 r = static_cast<uint32>(row);
    const uint32 c = static_cast<uint32>(chunk);
    const uint32 swizzle = r % kOctetSlots * kPanelBytes / 128;
    return tile +
           static_cast<int32>(r / kOctetSlots * kOctetBytes + r % kOctetSlots * kPanelBytes) +
           static_cast<int32>((c % kPanelChunks ^ swizzle) * 16) +
           static_cast<int32>(c / kPanelChunks * kAtomBytes);
  }

  // Returns the address of columns run * kCount to run * kCount + kCount - 1.
  template <int kCount>
  LAZYROPE_DEVICE static SharedPtr run(SharedPtr tile, int32 row, int32 run) {
    constexpr int32 kRuns = 16 / (kCount * kElementBytes);  // in a chunk
    const uint32 r = static_cast<uint32>(run);
    return chunk(tile, row, static_cast<int32>(r / kRuns)) +
           static_cast<int32>(r % kRuns * (kCount * kElementBytes));
  }

  // below(), kHasFixedOffset and offset_by() have the meaning that they have in SharedTile.
  LAZYROPE_DEVICE static SharedPtr below(SharedPtr chunk, int32 rows) {
    return (chunk ^ (rows % kOctetSlots * kPanelBytes / 128 * 16)) +
           (rows / kOctetSlots * kOctetBytes + rows % kOctetSlots * kPanelBytes);
  }
  template <int kApart>
  static constexpr bool kHasFixedOffset = kApart % kPanelBytes == 0 || is_power_of_two(kApart);
  template <int kApart>
  LAZYROPE_DEVICE static SharedPtr offset_by(SharedPtr chunk) {
    static_assert(kHasFixedOffset<kApart>);
    return kApart < kPanelBytes ? chunk ^ kApart : chunk + kApart / kPanelBytes * kAtomBytes;
  }

  // Returns the descriptor of an operand whose rows are along M or N: columns 0 to 15, along K.
  LAZYROPE_DEVICE static SharedDescriptor columns(SharedPtr tile) {
    return shared_descriptor(tile, 0, kOctetBytes, kSwizzle);
  }
  // Moves such a descriptor to columns 16 * sixteens and following.
  LAZYROPE_DEVICE static SharedDescriptor offset_by(SharedDescriptor columns, int32 sixteens) {
    constexpr int32 kSteps = kPanelBytes / 32;
    return (columns + sixteens / kSteps * kAtomBytes) | sixteens % kSteps * 32;
  }

  // Returns the descriptor of an operand whose rows are along K: rows 0 to 15, all columns along M
  // or N. Rows 16 * i and following are row_step(i) bytes further on.
  LAZYROPE_DEVICE static SharedDescriptor rows(SharedPtr tile) {
    return shared_descriptor(tile, kAtomBytes, kOctetBytes, kSwizzle);
  }
  // Returns the same for a tile of one panel, with the panel `other` as further columns.
  LAZYROPE_DEVICE static SharedDescriptor rows_beside(SharedPtr tile, SharedPtr other) {
    static_assert(kPanels == 1);
    return shared_descriptor(tile, static_cast<int32>(other.address - tile.address), kOctetBytes,
                             kSwizzle);
  }
  static constexpr int32 row_step(int32 sixteens) { return sixteens * 2 * kOctetBytes; }
};

// An accumulator of kColumns columns, which consists of kTiles accumulators of kAtOnce columns: a
// single product cannot, or does not, compute more.
template <int kColumns, int kAtOnce = columns_at_once(kColumns)>
struct WideAccumulator {
  static constexpr int kTileColumns = kAtOnce;
  static constexpr int kTiles = kColumns / kTileColumns;
  static constexpr int kCount = kColumns / 2;
  using TileAccumulator = Accumulator<kTileColumns>;

  LAZYROPE_DEVICE float& operator[](int i) {
    return tile[i / TileAccumulator::kCount][i % TileAccumulator::kCount];
  }
  LAZYROPE_DEVICE float operator[](int i) const {
    return tile[i / TileAccumulator::kCount][i % TileAccumulator::kCount];
  }
  LAZYROPE_DEVICE void pin() {
#pragma unroll
    for (int i = 0; i < kTiles; ++i) tile[i].pin();
  }

  TileAccumulator tile[kTiles];
};

// The 64 rows are four row tiles of 16, one per warp, distributed over lanes as in
// warp_product.cuh.
template <class T, int kColumns>
struct AccumulatorAccess : RowLanes {
  using Tile = T;
  static constexpr int kRowTiles = 1;
  static constexpr int kColumnTiles = kColumns / 8;
  LAZYROPE_DEVICE static float& at(Tile& tile, int, int n, int i) { return tile[4 * n + i]; }
  LAZYROPE_DEVICE static float at(const Tile& tile, int, int n, int i) { return tile[4 * n + i]; }
};
template <int kColumns>
struct TileAccess<Accumulator<kColumns>> : AccumulatorAccess<Accumulator<kColumns>, kColumns> {};
template <int kColumns>
struct TileAccess<WideAccumulator<kColumns>>
    : AccumulatorAccess<WideAccumulator<kColumns>, kColumns> {};

// The accumulator of a transposed product, one tile per head: queries are its columns, and keys or
// columns of values its rows. Below, "row" and "column" mean those of the product that is not
// transposed: queries are rows.
template <int kQueries, int kHeads>
struct TransposedAccumulator : WideAccumulator<kQueries, kQueries / kHeads> {};

// The distribution of a transposed product: the columns of a query row are in lanes 4 apart, in all
// four warps. maximum() and sum() cover one warp alone.
struct ColumnLanes {
  LAZYROPE_DEVICE static int32 row(int m, int h) { return m * 8 + column_of(lane_index(), h); }
  LAZYROPE_DEVICE static bool is_first() { return lane_index() < 4 && warp() == 0; }
  LAZYROPE_DEVICE static float maximum(float of_lane) {
#pragma unroll
    for (int apart = 4; apart < kWarpThreads; apart *= 2)
      of_lane = max_f32(of_lane, shfl_sync_bfly(of_lane, apart));
    return of_lane;
  }
  LAZYROPE_DEVICE static float sum(float of_lane) {
#pragma unroll
    for (int apart = 4; apart < kWarpThreads; apart *= 2) of_lane += shfl_sync_bfly(of_lane, apart);
    return of_lane;
  }
  LAZYROPE_DEVICE static int32 first_column() { return warp() * 16 + row_of(lane_index(), 0); }
  static constexpr int32 column(int i) { return i * 8; }  // from first_column(); i = 0 and 1
  LAZYROPE_DEVICE static uint32 columns_before(int32 end) {
    return (end > column(0) ? 1u : 0u) | (end > column(1) ? 2u : 0u);
  }

 private:
  LAZYROPE_DEVICE static int32 warp() { return warp_index() % 4; }
};

template <int kQueries, int kHeads>
struct TileAccess<TransposedAccumulator<kQueries, kHeads>> : ColumnLanes {
  using Tile = TransposedAccumulator<kQueries, kHeads>;
  static constexpr int kRowTiles = kQueries / 8;
  static constexpr int kColumnTiles = 1;
  LAZYROPE_DEVICE static float& at(Tile& tile, int m, int, int i) {
    return tile[register_index(m, i)];
  }
  LAZYROPE_DEVICE static float at(const Tile& tile, int m, int, int i) {
    return tile[register_index(m, i)];
  }

 private:
  static constexpr int register_index(int m, int i) { return 4 * m + i % 2 * 2 + i / 2; }
};

}  // namespace lazyrope
