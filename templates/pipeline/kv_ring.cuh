// A ring of stages in shared memory, each a block of keys and its values, filled by cp.async: one
// group of copies a block, kStages - 1 blocks under way while one is read.
#pragma once

#include "isa/async_copy.cuh"
#include "isa/sync.cuh"
#include "pipeline/block_table.cuh"
#include "tile/shared_tile.cuh"

namespace lazyrope {

// The threads that share a ring: the whole CTA, or one warp.
template <int kThreadCount>
struct Team {
  static constexpr int kThreads = kThreadCount;
  LAZYROPE_DEVICE static int32 rank() { return thread_index() % kThreads; }
  LAZYROPE_DEVICE static void sync() {
    if constexpr (kThreads == kWarpThreads)
      bar_warp_sync();
    else
      bar_sync();
  }
};

// kKeys slots of each block, from `first_key` of the block on, of one KV head.
template <class Team, class Tile, int kKeys, int kStages>
class KvRing {
  static constexpr int kChunks = Tile::kChunks;
  // Slots that the team copies at once; threads beyond their chunks have nothing to copy.
  static constexpr int kPassRows = smaller(kRunSlots, floor_power_of_two(Team::kThreads / kChunks));
  static_assert(Team::kThreads >= kChunks);
  // Where rows of a head share lines of 128 bytes with its neighbours, which other CTAs read at
  // other times, whole lines would be fetched more than once.
  static constexpr bool kWholeLines = Tile::kFilledChunks % 8 == 0;
  static constexpr int kTileBytes = kKeys * Tile::kRowBytes;

 public:
  static constexpr int kBytes = kStages * 2 * kTileBytes;

  LAZYROPE_DEVICE KvRing(SharedPtr memory, const KvPool& pool, int32 first_key)
      : memory_(memory), pool_(pool), first_key_(first_key) {}

  LAZYROPE_DEVICE SharedPtr keys(int32 block) const {
    const auto stage = static_cast<int32>(static_cast<uint32>(block) % kStages);
    return memory_ + stage * 2 * kTileBytes;
  }
  LAZYROPE_DEVICE SharedPtr values(int32 block) const { return keys(block) + kTileBytes; }

  // Waits until the block that was asked for kStages - 1 groups of copies ago has arrived for the
  // whole team, which has then also done with the block before.
  LAZYROPE_DEVICE void wait() const {
    cp_async_wait_group<kStages - 2>();
    Team::sync();
  }

  // Asks for `block`, in the place of block - kStages. Slots outside the segment become zeros: a
  // weight of zero would not hide what they hold (0 x NaN).
  template <class Table>
  LAZYROPE_DEVICE void issue(const Table& table, int32 block, int32 kv_head) const {
    const BlockInfo info = table.info(block);
    const int32 row = Team::rank() / kChunks;
    const int32 chunk = Team::rank() % kChunks;
    if (kPassRows * kChunks < Team::kThreads && row >= kPassRows) return;
    const int32 begin = info.begin - first_key_ - row;
    const int32 end = info.end - first_key_ - row;
    const uint32 offset = static_cast<uint32>(kv_head) * pool_.head_stride +
                          static_cast<uint32>(row) * pool_.slot_stride +
                          static_cast<uint32>(chunk) * 16;
    const SharedPtr tile = keys(block);
    uint64 run = 0;
#pragma unroll
    for (int pass = 0; pass < kKeys / kPassRows; ++pass) {
      const int slot = pass * kPassRows;
      if (slot % kRunSlots == 0) run = run_offset(table.run(block, slot / kRunSlots)) + offset;
      const uint64 source = run + static_cast<uint32>(slot % kRunSlots) * pool_.slot_stride;
      const bool is_filled = kChunks == Tile::kFilledChunks || chunk < Tile::kFilledChunks;
      const int32 bytes = slot >= begin && slot < end && is_filled ? 16 : 0;
      const SharedPtr to = Tile::chunk(tile, slot + row, chunk);
      cp_async_cg_16<kWholeLines>(to, static_cast<const uint8*>(pool_.keys) + source, bytes);
      cp_async_cg_16<kWholeLines>(to + kTileBytes, static_cast<const uint8*>(pool_.values) + source,
                                  bytes);
    }
  }

 private:
  // Offsets inside a page fit 32 bits (the host checks); a page may lie anywhere.
  LAZYROPE_DEVICE uint64 run_offset(RunPlace place) const {
    return static_cast<uint64>(static_cast<uint32>(place.page)) * pool_.page_stride +
           static_cast<uint32>(place.slot) * pool_.slot_stride;
  }

  SharedPtr memory_;
  const KvPool& pool_;
  int32 first_key_;
};

}  // namespace lazyrope
