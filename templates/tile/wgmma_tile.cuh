// A tile of 16-bit elements in shared memory for wgmma, with its rows along M, N or K. A row is
// divided into panels of kPanelBytes bytes: 128, 64 or 32. A panel has n = kPanelBytes / 16 chunks
// of 16 bytes. Chunk c of row r is at byte
//   r / 8 * kOctetBytes + c / n * kAtomBytes + r % 8 * kPanelBytes + (c % n ^ s) * 16,
// where s = r % 8 * kPanelBytes / 128 is the swizzle. Eight rows are contiguous, so that one copy
// writes them. The tile is aligned to 1024 bytes.
//
// If kColumns is no multiple of 16, the last panel is padded with zeros, and it has a copy of its
// own. The tile then has all kRows rows of a panel before the next panel: r / 8 * kOctetBytes is
// the distance in a panel, and c / n * panel_distance() the one between panels. Such tiles are of
// values. PaddedKeyTile is the one of keys.
#pragma once

#include "abi/attend_tma.h"
#include "isa/wgmma.cuh"
#include "tile/warp_product.cuh"

namespace lazyrope {

template <int kColumns, int kRows = 0>
struct WgmmaTile {
  static constexpr int kPanelBytes = panel_bytes(kColumns);
  static constexpr int kChunks = kColumns * kElementBytes / 16;  // chunks of a row
  static constexpr int kFilledChunks = kChunks;
  static constexpr int kPanels = value_row_bytes(kColumns) / kPanelBytes;
  static constexpr Swizzle kSwizzle = kPanelBytes == 128  ? Swizzle::k128B
                                      : kPanelBytes == 64 ? Swizzle::k64B
                                                          : Swizzle::k32B;
  static constexpr int kAtomBytes = kOctetSlots * kPanelBytes;
  static constexpr int kOctetBytes = is_padded(kColumns) ? kAtomBytes : kPanels * kAtomBytes;
  static_assert(kPanels * kPanelBytes == value_row_bytes(kColumns));
  static_assert(is_padded(kColumns) == (kRows > 0));

  // Returns the distance of the same row in two panels.
  static constexpr int panel_distance() {
    return is_padded(kColumns) ? kRows * kPanelBytes : kAtomBytes;
  }
  static constexpr int bytes(int rows) { return rows / kOctetSlots * kPanels * kAtomBytes; }

  LAZYROPE_DEVICE static SharedPtr chunk(SharedPtr tile, int32 row, int32 chunk) {
    constexpr uint32 kPanelChunks = kPanelBytes / 16;
    // Unsigned remainders are cheap. The terms are added one by one, because chunks with the same
    // index in two panels differ in the last term alone.
    const uint32 r = static_cast<uint32>(row);
    const uint32 c = static_cast<uint32>(chunk);
    const uint32 swizzle = r % kOctetSlots * kPanelBytes / 128;
    return tile +
           static_cast<int32>(r / kOctetSlots * kOctetBytes + r % kOctetSlots * kPanelBytes) +
           static_cast<int32>((c % kPanelChunks ^ swizzle) * 16) +
           static_cast<int32>(c / kPanelChunks * panel_distance());
  }

  // Returns the address of columns run * kCount to run * kCount + kCount - 1.
  template <int kCount>
  LAZYROPE_DEVICE static SharedPtr run(SharedPtr tile, int32 row, int32 run) {
    constexpr int32 kRuns = 16 / (kCount * kElementBytes);  // in a chunk
    const uint32 r = static_cast<uint32>(run);
    return chunk(tile, row, static_cast<int32>(r / kRuns)) +
           static_cast<int32>(r % kRuns * (kCount * kElementBytes));
  }

  // advance_rows(), kHasFixedOffset and offset_by() have the meaning that they have in SharedTile.
  LAZYROPE_DEVICE static SharedPtr advance_rows(SharedPtr chunk, int32 rows) {
    return (chunk ^ (rows % kOctetSlots * kPanelBytes / 128 * 16)) +
           (rows / kOctetSlots * kOctetBytes + rows % kOctetSlots * kPanelBytes);
  }
  template <int kOffset>
  static constexpr bool kHasFixedOffset = kOffset % kPanelBytes == 0 || is_power_of_two(kOffset);
  template <int kOffset>
  LAZYROPE_DEVICE static SharedPtr offset_by(SharedPtr chunk) {
    static_assert(kHasFixedOffset<kOffset>);
    return kOffset < kPanelBytes ? chunk ^ kOffset
                                 : chunk + kOffset / kPanelBytes * panel_distance();
  }

  // Returns the descriptor of an operand whose rows are along M or N, for columns 0 to 15, along K.
  LAZYROPE_DEVICE static SharedDescriptor columns(SharedPtr tile) {
    return shared_descriptor(tile, 0, kOctetBytes, kSwizzle);
  }
  // Moves a descriptor of columns() to columns 16 * sixteens and following.
  LAZYROPE_DEVICE static SharedDescriptor offset_by(SharedDescriptor columns, int32 sixteens) {
    constexpr int32 kSteps = kPanelBytes / 32;
    return (columns + sixteens / kSteps * panel_distance()) | sixteens % kSteps * 32;
  }

  // Returns the descriptor of an operand whose rows are along K, for rows 0 to 15; all columns are
  // along M or N. Rows 16 * i and following are row_step(i) bytes further.
  LAZYROPE_DEVICE static SharedDescriptor rows(SharedPtr tile) {
    return shared_descriptor(tile, panel_distance(), kOctetBytes, kSwizzle);
  }
  // Does the same for a tile of one panel. The panel `other` adds columns to the operand.
  LAZYROPE_DEVICE static SharedDescriptor rows_beside(SharedPtr tile, SharedPtr other) {
    static_assert(kPanels == 1);
    return shared_descriptor(tile, static_cast<int32>(other.address - tile.address), kOctetBytes,
                             kSwizzle);
  }
  static constexpr int32 row_step(int32 sixteens) { return sixteens * 2 * kOctetBytes; }
  // Moves the address of a chunk with index `chunk` in its row to rows 16 * sixteens and following.
  LAZYROPE_DEVICE static SharedPtr advance_sixteens(SharedPtr address, int32, int32 sixteens) {
    return address + row_step(sixteens);
  }
};

// The tile of kRows keys whose rows are padded: all rows of the panels of 128 bytes, then all rows
// of a panel of 16 columns, which contains the padding. A wider last panel would be mostly zeros.
// It would leave no room for a third stage, and TMA would write twice the bytes.
template <int kColumns, int kRows>
struct PaddedKeyTile {
  static constexpr int kFirstColumns = kColumns / 64 * 64;
  using First = WgmmaTile<kFirstColumns>;
  using Last = WgmmaTile<last_key_panel_bytes() / kElementBytes>;
  static constexpr int kLastAt = First::bytes(kRows);
  static_assert(is_padded(kColumns) && First::kPanels == 1);
  static_assert(Last::kPanels == 1 && Last::kPanelBytes == last_key_panel_bytes());

  static constexpr int bytes(int rows) { return First::bytes(rows) + Last::bytes(rows); }
  static_assert(bytes(kRows) == kRows * key_row_bytes(kColumns));
  static_assert(bytes(kRows) % First::kAtomBytes == 0, "the next tile begins with an atom");

  LAZYROPE_DEVICE static SharedPtr chunk(SharedPtr tile, int32 row, int32 chunk) {
    return chunk < First::kChunks ? First::chunk(tile, row, chunk)
                                  : Last::chunk(tile + kLastAt, row, chunk - First::kChunks);
  }
  LAZYROPE_DEVICE static SharedPtr advance_sixteens(SharedPtr address, int32 chunk,
                                                    int32 sixteens) {
    return address + sixteens * (chunk < First::kChunks ? First::row_step(1) : Last::row_step(1));
  }
  LAZYROPE_DEVICE static SharedDescriptor columns(SharedPtr tile) { return First::columns(tile); }
  LAZYROPE_DEVICE static SharedDescriptor offset_by(SharedDescriptor columns, int32 sixteens) {
    if (sixteens < kFirstColumns / 16) return First::offset_by(columns, sixteens);
    const uint64 first = descriptor_bits(0, 0, First::kOctetBytes, First::kSwizzle);
    const uint64 last = descriptor_bits(kLastAt, 0, Last::kOctetBytes, Last::kSwizzle);
    return {columns.bits + (last - first)};
  }
};

// The tiles of kRows keys and values, and that of queries, whose padding is a chunk of zeros.
template <int kColumns, int kRows>
using ValueTile = WgmmaTile<kColumns, is_padded(kColumns) ? kRows : 0>;
template <int kColumns, int kRows, bool kIsPadded = is_padded(kColumns)>
struct SelectKeyTile {
  using Type = WgmmaTile<kColumns>;
};
template <int kColumns, int kRows>
struct SelectKeyTile<kColumns, kRows, true> {
  using Type = PaddedKeyTile<kColumns, kRows>;
};
template <int kColumns, int kRows>
using KeyTile = typename SelectKeyTile<kColumns, kRows>::Type;
template <int kColumns>
using QueryWgmmaTile = WgmmaTile<query_columns(kColumns)>;

// An accumulator of kColumns columns, which consists of kTiles accumulators of kMmaN columns. Each
// of these is the result of one product.
template <int kColumns, int kMmaN = columns_at_once(kColumns)>
struct WideAccumulator {
  static constexpr int kTileColumns = kMmaN;
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

// The 64 rows of an accumulator are four row tiles of 16, one for each warp. They are distributed
// over lanes as in warp_product.cuh.
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

// The accumulator of a transposed product, with one tile for each head. Its columns are queries,
// and its rows are keys or columns of values. The code below says "row" for a query and "column"
// for a key or a column of values, as if the product were not transposed.
template <int kQueries, int kHeads>
struct TransposedAccumulator : WideAccumulator<kQueries, kQueries / kHeads> {};

// The distribution of a transposed product. The columns of a query row are in all four warps, in
// the lanes with the same lane % 4. maximum() and sum() cover one warp alone.
struct ColumnLanes {
  LAZYROPE_DEVICE static int32 row(int m, int h) { return m * 8 + column_of(lane_index(), h); }
  LAZYROPE_DEVICE static bool is_first() { return lane_index() < 4 && warp() == 0; }
  LAZYROPE_DEVICE static bool is_first_of_row() { return lane_index() < 4; }
  static constexpr int kFirstMask = 4;
  static constexpr int kEndMask = kWarpThreads;
  LAZYROPE_DEVICE static float maximum(float of_lane) {
#pragma unroll
    for (int mask = 4; mask < kWarpThreads; mask *= 2)
      of_lane = max_f32(of_lane, shfl_sync_bfly(of_lane, mask));
    return of_lane;
  }
  LAZYROPE_DEVICE static float sum(float of_lane) {
#pragma unroll
    for (int mask = 4; mask < kWarpThreads; mask *= 2) of_lane += shfl_sync_bfly(of_lane, mask);
    return of_lane;
  }
  LAZYROPE_DEVICE static int32 first_column() { return warp() * 16 + row_of(lane_index(), 0); }
  static constexpr int32 column(int i) { return i * 8; }  // from first_column(); i = 0 and 1
  static constexpr int32 column_offset(int, int i) { return column(i); }
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
