// The query rows of a work tile in shared memory, and the work tile itself.
#pragma once

#include "abi/cascade.h"
#include "isa/async_copy.cuh"
#include "isa/sync.cuh"
#include "ops/team.cuh"
#include "tile/shared_tile.cuh"

namespace lazyrope {

// The CTA's current work tile in shared memory. Its fields are loaded where they are used: held
// across the main loop, they would cost registers that the kernel does not have.
class WorkTilePtr {
 public:
  LAZYROPE_DEVICE explicit WorkTilePtr(SharedPtr memory) : memory_(memory) {}

  LAZYROPE_DEVICE void copy_from(const WorkTile* work_tile) const {
    constexpr int32 kChunks = sizeof(WorkTile) / sizeof(Chunk);
    if (thread_index() < kChunks)
      st_shared(memory_ + thread_index() * 16,
                ld_global_nc(reinterpret_cast<const Chunk*>(work_tile) + thread_index()));
  }

  // The first threads of the CTA copy the work tile asynchronously. The copies belong to their next
  // group.
  LAZYROPE_DEVICE void copy_async(const WorkTile* work_tile) const {
    constexpr int32 kChunks = sizeof(WorkTile) / sizeof(Chunk);
    if (thread_index() < kChunks)
      cp_async_cg_16<true>(memory_ + thread_index() * 16,
                           reinterpret_cast<const Chunk*>(work_tile) + thread_index(), 16);
  }

  // Stores bytes 16 * chunk to 16 * chunk + 15 of the work tile.
  LAZYROPE_DEVICE void store(int32 chunk, const Chunk& value) const {
    st_shared(memory_ + chunk * 16, value);
  }

  LAZYROPE_DEVICE WorkTileExtent extent() const { return ld_shared<WorkTileExtent>(memory_); }
  LAZYROPE_DEVICE WorkTileRows rows() const { return ld_shared<WorkTileRows>(memory_ + 16); }
  LAZYROPE_DEVICE WorkTileKeys keys() const { return ld_shared<WorkTileKeys>(memory_ + 32); }
  // Tells whether the CTA has no further work tile.
  LAZYROPE_DEVICE bool is_last() const { return keys().next == kNoWorkTile; }
  LAZYROPE_DEVICE KvSplit split() const { return ld_shared<KvSplit>(memory_ + 48); }
  LAZYROPE_DEVICE int32 num_combiners() const {
    return ld_shared<int32>(memory_ + (static_cast<int32>(sizeof(WorkTile)) - 4));
  }
  // Returns the work tile's start without the pages, which start_page() returns.
  LAZYROPE_DEVICE WorkTileStart start() const {
    const Chunk segment = ld_shared<Chunk>(memory_ + kStart);
    WorkTileStart start{};
    start.base = static_cast<int32>(segment.word[0]);
    start.position = static_cast<int32>(segment.word[1]);
    start.begin = static_cast<int32>(segment.word[2]);
    start.end = static_cast<int32>(segment.word[3]);
    start.slot = ld_shared<int32>(memory_ + kStart + 16);
    start.page_size = ld_shared<int32>(memory_ + kStart + 20);
    return start;
  }
  LAZYROPE_DEVICE int32 start_page(int32 run) const {
    return ld_shared<int32>(memory_ + kStart + 24 + run * 4);
  }

 private:
  static constexpr int32 kStart = 64;

  SharedPtr memory_;
};

// The token and the query head of a packed row of the work tile: indices in the whole q.
template <class Spec>
struct QueryRow {
  int64 token;
  int64 head;

  LAZYROPE_DEVICE QueryRow(const WorkTileRows& rows, int32 row)
      : token(rows.query_token + (rows.first_row + row) / Spec::kGroupSize),
        head(rows.kv_head * Spec::kGroupSize + (rows.first_row + row) % Spec::kGroupSize) {}
};

// Returns the row of q that has a token of the step.
template <class Spec>
LAZYROPE_DEVICE int64 row_of_query(const AttendParams& params, int64 token) {
  if constexpr (Spec::kIsShared)
    return ld_global_nc(&params.cascade.tokens[token].query_token);
  else
    return token;
}

// Returns how many rows of q are between those of a token of the step and of the next token.
template <class Spec>
LAZYROPE_DEVICE int64 rows_skipped_after(const AttendParams& params, int64 token) {
  return row_of_query<Spec>(params, token + 1) - row_of_query<Spec>(params, token) - 1;
}

// Returns the rows of the work tile's KV head number `head`.
LAZYROPE_DEVICE WorkTileRows rows_of_head(WorkTileRows rows, int32 head) {
  rows.kv_head += head;
  return rows;
}

// Copies rows of one KV head of the work tile to a tile in shared memory. Rows first_row to
// first_row + num_rows - 1 go to rows to_row and following; rows up to end_row - 1 become zero. All
// threads of the team take part. The copies belong to the caller's next group of asynchronous
// copies.
template <class Spec, class Team, class Tile = SharedTile<Spec::kHeadDim>>
LAZYROPE_DEVICE void copy_query_rows(SharedPtr tile, const AttendParams& params, WorkTileRows rows,
                                     int32 first_row, int32 num_rows, int32 to_row, int32 end_row) {
  const TokenTensor& q = params.q;
#pragma unroll 1
  for (int32 i = Team::rank(); i < (end_row - to_row) * Tile::kChunks; i += Team::size()) {
    const int32 row = i / Tile::kChunks;
    const int32 chunk = i % Tile::kChunks;
    const bool valid = row < num_rows;
    const QueryRow<Spec> from(rows, valid ? first_row + row : 0);
    const uint8* source = static_cast<const uint8*>(q.data) +
                          row_of_query<Spec>(params, from.token) * q.token_stride +
                          from.head * q.head_stride + chunk * 16;
    const bool is_filled = Tile::kChunks == Tile::kFilledChunks || chunk < Tile::kFilledChunks;
    cp_async_cg_16<true>(Tile::chunk(tile, to_row + row, chunk), source,
                         valid && is_filled ? 16 : 0);
  }
}

// Calls visit(chunk, address, exists) for each 16-byte chunk of kRows rows of a tile in shared
// memory. `chunk` is the address in the tile, and `address` the one in q. The rows of
// the tile from to_row on are the rows of one KV head of the work tile from first_row on. Only
// num_rows of them exist. to_row is a multiple of 8, and a row has at most as many chunks as a warp
// has lanes. One warp takes part. Each lane visits chunks of one column, so that the next row's
// address takes little arithmetic.
template <class Spec, class Tile, int32 kRows, class Visit>
LAZYROPE_DEVICE void for_each_query_chunk(SharedPtr tile, const AttendParams& params,
                                          const WorkTileRows& rows, int32 first_row, int32 num_rows,
                                          int32 to_row, const Visit& visit) {
  constexpr int32 kChunks = Tile::kFilledChunks;
  static_assert(kChunks <= kWarpThreads);
  // Groups of lanes that divide the rows.
  constexpr int32 kColumns = floor_power_of_two(kWarpThreads / kChunks);
  constexpr int32 kColumnRows = kRows / kColumns;
  constexpr int32 kOctet = 8;
  static_assert(kColumnRows % kOctet == 0);
  const uint32 lane = static_cast<uint32>(lane_index());
  const int32 begin = static_cast<int32>(lane / kChunks) * kColumnRows;
  const int32 chunk = static_cast<int32>(lane % kChunks);
  if (begin >= kRows) return;
  const TokenTensor& tensor = params.q;
  const QueryRow<Spec> first(rows, begin < num_rows ? first_row + begin : 0);
  const uint8* address = static_cast<const uint8*>(tensor.data) +
                         row_of_query<Spec>(params, first.token) * tensor.token_stride +
                         first.head * tensor.head_stride + chunk * 16;
  const int64 to_next_token = tensor.token_stride - (Spec::kGroupSize - 1) * tensor.head_stride;
  int32 heads_left = static_cast<int32>(Spec::kGroupSize - first.head % Spec::kGroupSize);
  int64 token = first.token;
#pragma unroll 1
  for (int32 row = begin; row < begin + kColumnRows; row += kOctet) {
    const SharedPtr octet = Tile::chunk(tile, to_row + row, chunk);
#pragma unroll
    for (int32 i = 0; i < kOctet; ++i) {
      visit(Tile::advance_rows(octet, i), address, row + i < num_rows);
      const bool is_last = --heads_left == 0;
      if (row + i + 1 < num_rows) {
        address += is_last ? to_next_token : tensor.head_stride;
        if constexpr (Spec::kIsShared) {
          if (is_last) address += tensor.token_stride * rows_skipped_after<Spec>(params, token++);
        }
      }
      if (is_last) heads_left = Spec::kGroupSize;
    }
  }
}

// Writes the logical positions of kRows rows to shared memory, from the work tile's first_row on.
// If the work tile says that all rows have one position, that is stored; otherwise copy(to, from)
// copies each position. Rows past the work tile's last row repeat its position. kHeadRows of the
// rows are of one KV head. All threads of the team take part.
template <class Spec, class Team, int kRows, int kHeadRows = kRows, class Copy>
LAZYROPE_DEVICE void copy_row_positions(SharedPtr positions, const int32* step_positions,
                                        WorkTilePtr work_tile, int32 first_row, const Copy& copy) {
  const WorkTileRows rows = work_tile.rows();
  const WorkTileExtent extent = work_tile.extent();
#pragma unroll 1
  for (int32 row = Team::rank(); row < kRows; row += Team::size()) {
    const QueryRow<Spec> from(rows, smaller(first_row + row % kHeadRows, extent.num_rows - 1));
    const SharedPtr to = positions + row * 4;
    if (extent.first_position == extent.last_position)
      st_shared(to, extent.first_position);
    else
      copy(to, step_positions + from.token);
  }
}

}  // namespace lazyrope
