// The query rows of an item in shared memory.
#pragma once

#include "abi/attend.h"
#include "isa/async_copy.cuh"
#include "isa/sync.cuh"
#include "tile/shared_tile.cuh"

namespace lazyrope {

// The CTA's present item lies in shared memory, and its fields are loaded where they are used: held
// across the main loop, they would cost registers that it has not got.
class ItemPtr {
 public:
  LAZYROPE_DEVICE explicit ItemPtr(SharedPtr memory) : memory_(memory) {}

  LAZYROPE_DEVICE void copy_from(const Item* item) const {
    constexpr int32 kChunks = sizeof(Item) / sizeof(Chunk);
    if (thread_index() < kChunks)
      st_shared(memory_ + thread_index() * 16,
                ld_global_nc(reinterpret_cast<const Chunk*>(item) + thread_index()));
  }

  LAZYROPE_DEVICE ItemExtent extent() const { return ld_shared<ItemExtent>(memory_); }
  LAZYROPE_DEVICE ItemRows rows() const { return ld_shared<ItemRows>(memory_ + 16); }
  LAZYROPE_DEVICE ItemKeys keys() const { return ld_shared<ItemKeys>(memory_ + 32); }
  LAZYROPE_DEVICE ItemSplit split() const { return ld_shared<ItemSplit>(memory_ + 48); }

 private:
  SharedPtr memory_;
};

// Token and head, of the whole q, of a packed row of the item.
template <class Spec>
struct QueryRow {
  int64 token;
  int64 head;

  LAZYROPE_DEVICE QueryRow(const ItemRows& rows, int32 row)
      : token(rows.query_token + (rows.first_row + row) / Spec::kGroupSize),
        head(rows.kv_head * Spec::kGroupSize + (rows.first_row + row) % Spec::kGroupSize) {}
};

// Copies rows first_row .. first_row + kRows - 1 of the item into a tile; rows past its last are
// zero. Part of the caller's next group of asynchronous copies.
template <class Spec, int kRows, int kThreads>
LAZYROPE_DEVICE void copy_query_rows(SharedPtr tile, const TokenTensor& q, ItemPtr item,
                                     int32 first_row) {
  using Tile = SharedTile<Spec::kHeadDim>;
  const ItemRows rows = item.rows();
  const int32 num_rows = item.extent().num_rows;
#pragma unroll 1
  for (int32 i = thread_index() % kThreads; i < kRows * Tile::kChunks; i += kThreads) {
    const int32 row = i / Tile::kChunks;
    const int32 chunk = i % Tile::kChunks;
    const bool valid = first_row + row < num_rows;
    const QueryRow<Spec> from(rows, valid ? first_row + row : 0);
    const uint8* source = static_cast<const uint8*>(q.data) + from.token * q.token_stride +
                          from.head * q.head_stride + chunk * 16;
    const bool is_filled = Tile::kChunks == Tile::kFilledChunks || chunk < Tile::kFilledChunks;
    cp_async_cg_16<true>(Tile::chunk(tile, row, chunk), source, valid && is_filled ? 16 : 0);
  }
}

// All threads of the CTA: the logical position of each row; rows past the item's last repeat it.
template <class Spec, int kRows>
LAZYROPE_DEVICE void copy_row_positions(SharedPtr positions, const int32* step_positions,
                                        ItemPtr item) {
  const ItemRows rows = item.rows();
  const int32 last = item.extent().num_rows - 1;
#pragma unroll 1
  for (int32 row = thread_index(); row < kRows; row += block_threads()) {
    const QueryRow<Spec> from(rows, smaller(row, last));
    st_shared(positions + row * 4, ld_global_nc(step_positions + from.token));
  }
}

}  // namespace lazyrope
