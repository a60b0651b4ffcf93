// Rings in shared memory that cp.async fills with the keys and values of a work tile's blocks
// (family sm80).
//
// KvRing serves a CTA: all its warps copy and read each block. TileRing serves one warp alone. Both
// synchronize by cp.async groups: a thread waits for its own copies, then a CTA barrier (KvRing) or
// a warp barrier (TileRing) shows them to the other threads.
#pragma once

#include "isa/async_copy.cuh"
#include "isa/sync.cuh"
#include "ops/pool_offset.cuh"
#include "ops/team.cuh"
#include "pipeline/block_table.cuh"
#include "tile/shared_tile.cuh"

namespace lazyrope {

// One half of the blocks of entries in a table: kKeys keys (abi/states.h). It has the functions of
// the table that copies call.
template <class Table, int kKeys>
struct HalfBlocks {
  const Table& table;
  int32 half;

  LAZYROPE_DEVICE BlockInfo info(int32 block) const {
    BlockInfo info = table.info(block);
    info.begin -= half * kKeys;
    info.end -= half * kKeys;
    return info;
  }
  LAZYROPE_DEVICE RunLocation run(int32 block, int32 run) const {
    return table.run(block, half * (kKeys / kRunSlots) + run);
  }
};

// Copies the kKeys slots of a block of one KV head to a tile. Each thread of the team copies 16
// bytes at a time.
template <class Team, class Tile, int kKeys>
class BlockCopy {
  static constexpr int kChunks = Tile::kChunks;
  // The slots that the team copies at once. The threads for which no slot is left copy nothing.
  static constexpr int kRowsPerPass =
      smaller(kRunSlots, floor_power_of_two(Team::size() / kChunks));
  static_assert(Team::size() >= kChunks);

 public:
  // Says whether copies fetch whole lines of 128 bytes to L2: only if a row fills whole lines.
  // Otherwise rows of neighbouring heads may share a line, and CTAs that read these heads at
  // different times would fetch the whole line more than once.
  static constexpr bool kWholeLines = Tile::kFilledChunks % 8 == 0;
  static constexpr int kTileBytes = kKeys * Tile::kRowBytes;

  LAZYROPE_DEVICE BlockCopy(const KvPool& pool, int32 kv_head) : pool_(pool) {
    const int32 chunk = Team::rank() % kChunks;
    row_ = Team::rank() / kChunks;
    chunk_offset_ = Tile::chunk({0}, row_, chunk);
    source_ = static_cast<uint32>(kv_head) * pool.head_stride +
              static_cast<uint32>(row_) * pool.slot_stride + static_cast<uint32>(chunk) * 16;
    if (kRowsPerPass * kChunks < Team::size() && row_ >= kRowsPerPass)
      row_ = kIdle;
    else if (kChunks != Tile::kFilledChunks && chunk >= Tile::kFilledChunks)
      row_ = kUnfilled;
  }

  // Calls copy(to, source, bytes) for each of this thread's 16-byte chunks at address `to` of the
  // tile. The first `bytes` of a chunk come from offset `source` of the pool, and the others are
  // zeros. Slots outside the segment become zero: a weight of 0 would not hide their contents (0 x
  // NaN).
  template <class Table, class Copy>
  LAZYROPE_DEVICE void for_each(const Table& table, int32 block, SharedPtr tile,
                                const Copy& copy) const {
    if (kRowsPerPass * kChunks < Team::size() && row_ == kIdle) return;
    const BlockInfo info = table.info(block);
    const int32 begin = info.begin - row_;
    const int32 end = info.end - row_;
    const SharedPtr chunk_address = tile + static_cast<int32>(chunk_offset_.address);
    uint64 source = 0;
#pragma unroll
    for (int slot = 0; slot < kKeys; slot += kRowsPerPass) {
      if (slot % kRunSlots == 0)
        source = run_offset(table.run(block, slot / kRunSlots)) + source_;
      else
        source += static_cast<uint64>(pool_.slot_stride) * kRowsPerPass;
      copy(Tile::advance_rows(chunk_address, slot), source, slot >= begin && slot < end ? 16 : 0);
    }
  }

 private:
  // These values replace the row of threads whose chunk is all zeros, and of threads without a
  // chunk.
  static constexpr int32 kUnfilled = 1 << 20;
  static constexpr int32 kIdle = kUnfilled + 1;

  LAZYROPE_DEVICE uint64 run_offset(RunLocation location) const {
    return pool_offset(pool_, location.page, location.slot);
  }

  const KvPool& pool_;
  int32 row_;
  SharedPtr chunk_offset_;  // offset in a tile
  uint32 source_;           // offset in a run
};

// A ring whose stages contain the keys and values of a block, for a whole CTA. Each block is one
// cp.async group. While a block is read, kStages - 1 blocks are in flight.
template <class Team, class Tile, int kKeys, int kStages>
class KvRing {
  using Copies = BlockCopy<Team, Tile, kKeys>;
  static constexpr int kTileBytes = Copies::kTileBytes;

 public:
  static constexpr int kBytes = kStages * 2 * kTileBytes;

  LAZYROPE_DEVICE KvRing(SharedPtr memory, const KvPool& pool) : memory_(memory), pool_(pool) {}

  LAZYROPE_DEVICE SharedPtr keys(int32 block) const {
    const auto stage = static_cast<int32>(static_cast<uint32>(block) % kStages);
    return memory_ + stage * 2 * kTileBytes;
  }
  LAZYROPE_DEVICE SharedPtr values(int32 block) const { return keys(block) + kTileBytes; }

  // Waits for the oldest of the last kStages - 1 committed groups, which is the next block. After
  // the barrier the whole CTA has finished reading the previous block.
  LAZYROPE_DEVICE void wait() const {
    cp_async_wait_group<kStages - 2>();
    bar_sync();
  }

  // Issues the copies of `block`, into the stage of block - kStages.
  template <class Table>
  LAZYROPE_DEVICE void issue(const Table& table, int32 block, int32 kv_head) const {
    const Copies copies(pool_, kv_head);
    copies.for_each(table, block, keys(block), [&](SharedPtr to, uint64 source, int32 bytes) {
      constexpr bool kWholeLines = Copies::kWholeLines;
      cp_async_cg_16<kWholeLines>(to, static_cast<const uint8*>(pool_.keys) + source, bytes);
      cp_async_cg_16<kWholeLines>(to + kTileBytes, static_cast<const uint8*>(pool_.values) + source,
                                  bytes);
    });
  }

  // Does the same for a block of entries. The keys of its second half take the place of values.
  template <class Table>
  LAZYROPE_DEVICE void issue_entries(const Table& table, int32 block, int32 kv_head) const {
    const Copies copies(pool_, kv_head);
#pragma unroll 1
    for (int32 half = 0; half < 2; ++half)
      copies.for_each(HalfBlocks<Table, kKeys>{table, half}, block, keys(block) + half * kTileBytes,
                      [&](SharedPtr to, uint64 source, int32 bytes) {
                        cp_async_cg_16<Copies::kWholeLines>(
                            to, static_cast<const uint8*>(pool_.keys) + source, bytes);
                      });
  }

 private:
  SharedPtr memory_;
  const KvPool& pool_;
};

// A ring of tiles for one warp, which contain the keys and the values of each block alternately.
// Each tile is one cp.async group. While a tile is read, kTiles - 1 tiles are in flight.
template <class Tile, int kKeys, int kTiles>
class TileRing {
  using Copies = BlockCopy<Team<kWarpThreads>, Tile, kKeys>;

 public:
  static constexpr int kBytes = kTiles * Copies::kTileBytes;

  // `tiles` is the number of tiles that have been issued already, fewer than kTiles.
  LAZYROPE_DEVICE TileRing(SharedPtr memory, const KvPool& pool, int32 kv_head, int32 tiles)
      : memory_(memory), copies_(pool, kv_head), next_(tiles) {}

  // Waits for the next tile. After the barrier the whole warp has finished reading the previous
  // tile.
  LAZYROPE_DEVICE void wait() const {
    cp_async_wait_group<kTiles - 2>();
    bar_warp_sync();
  }

  // Returns the tile that wait() waited for. It may be read until the next wait().
  LAZYROPE_DEVICE SharedPtr take() {
    const SharedPtr tile = memory_ + current_ * Copies::kTileBytes;
    current_ = current_ + 1 == kTiles ? 0 : current_ + 1;
    return tile;
  }

  // Issues the copies of a block from the pool of keys or of values, into the tile that was read
  // last. The caller commits the group.
  template <class Table>
  LAZYROPE_DEVICE void issue(const Table& table, int32 block, const void* pool) {
    copies_.for_each(table, block, memory_ + next_ * Copies::kTileBytes,
                     [&](SharedPtr to, uint64 source, int32 bytes) {
                       cp_async_cg_16<Copies::kWholeLines>(
                           to, static_cast<const uint8*>(pool) + source, bytes);
                     });
    next_ = next_ + 1 == kTiles ? 0 : next_ + 1;
  }

 private:
  SharedPtr memory_;
  Copies copies_;
  int32 current_ = 0;
  int32 next_;
};

}  // namespace lazyrope
