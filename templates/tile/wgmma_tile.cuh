// A tile of 16-bit elements in shared memory as wgmma takes it, with its rows along M, N or K:
// octets of eight rows, of each octet its panels, of each panel eight rows, swizzled. So whoever
// writes eight rows writes one run of bytes, wherever in the tile they are. Aligned to 1024 bytes.
#pragma once

#include "abi/attend_tma.h"
#include "isa/wgmma.cuh"
#include "tile/warp_product.cuh"

namespace lazyrope {

template <int kColumns>
struct WgmmaTile {
  static constexpr int kPanelBytes = panel_bytes(kColumns);
  static constexpr int kChunks = kColumns * kElementBytes / 16;  // of a row
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
    // Unsigned, for remainders of these are cheap; and what is added apart, for a row's chunks at
    // the same place of two panels have most of it in common.
    const uint32 r = static_cast<uint32>(row);
    const uint32 c = static_cast<uint32>(chunk);
    const uint32 swizzle = r % kOctetSlots * kPanelBytes / 128;
    return tile +
           static_cast<int32>(r / kOctetSlots * kOctetBytes + r % kOctetSlots * kPanelBytes) +
           static_cast<int32>((c % kPanelChunks ^ swizzle) * 16) +
           static_cast<int32>(c / kPanelChunks * kAtomBytes);
  }

  // Columns run * kCount to run * kCount + kCount - 1.
  template <int kCount>
  LAZYROPE_DEVICE static SharedPtr run(SharedPtr tile, int32 row, int32 run) {
    constexpr int32 kRuns = 16 / (kCount * kElementBytes);  // in a chunk
    const uint32 r = static_cast<uint32>(run);
    return chunk(tile, row, static_cast<int32>(r / kRuns)) +
           static_cast<int32>(r % kRuns * (kCount * kElementBytes));
  }

  // As SharedTile's.
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

  // Rows along M or N, columns along K, 16 of them.
  LAZYROPE_DEVICE static SharedDescriptor columns(SharedPtr tile) {
    return shared_descriptor(tile, 0, kOctetBytes, kSwizzle);
  }
  // The columns 16 x `sixteens` behind.
  LAZYROPE_DEVICE static SharedDescriptor offset_by(SharedDescriptor columns, int32 sixteens) {
    constexpr int32 kSteps = kPanelBytes / 32;
    return (columns + sixteens / kSteps * kAtomBytes) | sixteens % kSteps * 32;
  }

  // Rows along K, 16 of them, columns along N; the next are row_step(1) bytes on, ...
  LAZYROPE_DEVICE static SharedDescriptor rows(SharedPtr tile) {
    return shared_descriptor(tile, kAtomBytes, kOctetBytes, kSwizzle);
  }
  // The same of a tile of one panel, with another panel's as further columns.
  LAZYROPE_DEVICE static SharedDescriptor rows_beside(SharedPtr tile, SharedPtr other) {
    static_assert(kPanels == 1);
    return shared_descriptor(tile, static_cast<int32>(other.address - tile.address), kOctetBytes,
                             kSwizzle);
  }
  static constexpr int32 row_step(int32 sixteens) { return sixteens * 2 * kOctetBytes; }
};

// An accumulator of all columns, which one product may not make at once, or does not.
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

// Lanes hold of 64 rows what they hold of four tiles of 16, one a warp.
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

// The other way round: queries are the columns, keys (or columns of values) the rows. What is row
// and column in the following is so of the product that is not turned round. Of each head a part.
template <int kQueries, int kHeads>
struct TransposedAccumulator : WideAccumulator<kQueries, kQueries / kHeads> {};

// A row of queries has keys in lanes 4 apart, of all four warps.
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
  static constexpr int32 column(int i) { return i * 8; }  // the lane has two
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
