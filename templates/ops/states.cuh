// Attention states (abi/states.h): the look-up of the best entry of a memory for each query row,
// and how its state is combined with the row's other results.
//
// The best entries of each row are in shared memory: one RowEntries for each row of a warp. A KV
// split leaves them beside its partial result. The CTA that combines the splits of a row chooses
// the best of them, and only then reads that entry's state and LSE. So values are read once a row.
//
// Scores are compared as the products give them. Scale, softcap, temperature and the scale of 8-bit
// keys do not change their order. Of equal scores in one lane the first counts, otherwise the one
// in the lower page or slot.
#pragma once

#include "abi/attend.h"
#include "ops/combine.cuh"
#include "tile/warp_product.cuh"

namespace lazyrope {

LAZYROPE_DEVICE BestEntry no_entry() { return {-infinity_f32(), kNoEntry}; }
LAZYROPE_DEVICE bool is_better(const BestEntry& a, const BestEntry& b) {
  return a.score > b.score || (a.score == b.score && a.location < b.location);
}

// A row's best entry of each memory.
template <int kMemories>
struct RowEntries {
  BestEntry of[kMemories];

  LAZYROPE_DEVICE void reset() {
#pragma unroll
    for (BestEntry& entry : of) entry = no_entry();
  }
  LAZYROPE_DEVICE void improve(const RowEntries& other) {
#pragma unroll
    for (int i = 0; i < kMemories; ++i)
      if (is_better(other.of[i], of[i])) of[i] = other.of[i];
  }
};
template <>
struct RowEntries<0> {};

// The entries of a tile of scores.
struct EntryTile {
  int32 begin;  // columns with entries: begin <= column < end
  int32 end;
  int32 first_entry;  // number of the entry in column 0, which may be below 0
  bool has_key_per_head;
};

// Returns the tile of a block's entries from column `column` on. `info` is the block's.
template <class BlockInfo>
LAZYROPE_DEVICE EntryTile entry_tile(const BlockInfo& info, int32 code, int32 column) {
  return {info.begin - column, info.end - column, info.position + column, has_key_per_head(code)};
}

// Returns the first of kGroupSize columns whose entry serves the head of a packed row. Column 0 has
// entry `entry`.
template <int kGroupSize>
LAZYROPE_DEVICE int32 first_own_column(int32 row, int32 entry) {
  const int32 distance = (row - entry) % kGroupSize;
  return distance < 0 ? distance + kGroupSize : distance;
}

// Compares a tile of scores of one memory with the best entries of the rows, and keeps better ones.
// `best_entries` has the best entry of the warp's row 0; those of other rows are kStride bytes
// apart. Rows are distributed as the scores are (TileAccess, tile/warp_product.cuh).
// packed_row(row) returns the packed row of the request that a row of the warp is, and
// locate(column) the location of an entry. All lanes of the warp take part.
//
// Better entries become rare as a memory is scanned. So most tiles end with the first loop, and the
// second one computes again what it needs, one row after another: registers are scarce.
template <int kGroupSize, int kStride = kRowEntryBytes, class Scores, class PackedRow, class Locate>
LAZYROPE_DEVICE void scan_entries(const Scores& scores, SharedPtr best_entries,
                                  const EntryTile& tile, const PackedRow& packed_row,
                                  const Locate& locate) {
  using Access = TileAccess<Scores>;
  static_assert(2 * Access::kColumnTiles <= 32);
  const int32 first = Access::first_column();
  const uint32 exists =
      Access::columns_before(tile.end - first) & ~Access::columns_before(tile.begin - first);
  // Returns the lane's best entry of a row: its score, and its column from the lane's first.
  const auto best_of_lane = [&](int m, int h) {
    const int32 own =
        tile.has_key_per_head
            ? first_own_column<kGroupSize>(packed_row(Access::row(m, h)), tile.first_entry + first)
            : -1;
    BestEntry best = no_entry();
#pragma unroll
    for (int n = 0; n < Access::kColumnTiles; ++n)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float score = Access::at(scores, m, n, 2 * h + i);
        const int32 column = Access::column_offset(n, i);
        const bool counts =
            (exists & 1u << (2 * n + i)) != 0 && (own < 0 || column % kGroupSize == own);
        if (counts && score > best.score) best = {score, column};
      }
    return best;
  };
  bool has_better = false;
#pragma unroll
  for (int m = 0; m < Access::kRowTiles; ++m)
#pragma unroll
    for (int h = 0; h < 2; ++h)
      has_better |=
          best_of_lane(m, h).score > ld_shared<float>(best_entries + Access::row(m, h) * kStride);
  if (vote_sync_any(has_better)) {
    bar_warp_sync();  // all lanes have read the rows
#pragma unroll
    for (int m = 0; m < Access::kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        BestEntry best = best_of_lane(m, h);
        if (best.location != kNoEntry) best.location = locate(first + best.location);
#pragma unroll
        for (int mask = Access::kFirstMask; mask < Access::kEndMask; mask *= 2) {
          const BestEntry other = {shfl_sync_bfly(best.score, mask),
                                   shfl_sync_bfly(best.location, mask)};
          if (is_better(other, best)) best = other;
        }
        const SharedPtr to = best_entries + Access::row(m, h) * kStride;
        if (Access::is_first_of_row() && best.score > ld_shared<float>(to)) st_shared(to, best);
      }
    bar_warp_sync();
  }
}

// Returns the address of the entry of a memory in a RowEntries in shared memory.
LAZYROPE_DEVICE SharedPtr entry_of(SharedPtr row_entries, int32 memory) {
  return row_entries + memory * static_cast<int32>(sizeof(BestEntry));
}

// Writes to shared memory that num_rows rows have no entry. `rank` of `size` threads take part.
LAZYROPE_DEVICE void reset_entries(SharedPtr rows, int32 num_rows, int32 rank, int32 size) {
#pragma unroll 1
  for (int32 i = rank; i < num_rows * kMaxMemories; i += size)
    st_shared(rows + i * static_cast<int32>(sizeof(BestEntry)), no_entry());
}

// Returns the best entries of a row, which are in shared memory.
template <int kMemories>
LAZYROPE_DEVICE RowEntries<kMemories> load_entries(SharedPtr rows, int32 row) {
  RowEntries<kMemories> entries;
  if constexpr (kMemories > 0) {
#pragma unroll
    for (int i = 0; i < kMemories; ++i)
      entries.of[i] = ld_shared<BestEntry>(entry_of(rows + row * kRowEntryBytes, i));
  }
  return entries;
}

// The states and the LSEs of entries in device memory.
template <class Spec>
class EntryStates {
  static constexpr int kMemories = Spec::kMemories;
  using Product = typename Spec::Product;
  using Element = typename Spec::Element;

 public:
  LAZYROPE_DEVICE explicit EntryStates(const AttendParams& params)
      : values_(static_cast<const uint8*>(params.pool.values)),
        page_stride_(params.pool.page_stride),
        slot_stride_(params.pool.slot_stride),
        head_stride_(params.pool.head_stride),
        lse_(params.entry_lse) {}

  // Adds the best entries to kQuads quads of a row, kStride quads from one to the next.
  template <int kStride, int kQuads>
  LAZYROPE_DEVICE void add(RowQuads<kQuads>& row, int32 kv_head, int32 quad,
                           const RowEntries<kMemories>& best) const {
#pragma unroll
    for (int i = 0; i < kMemories; ++i) {
      if (best.of[i].location == kNoEntry) continue;
      const RowQuads<kQuads> states[] = {
          state<kStride, kQuads>(best.of[i].location, kv_head, quad)};
      constexpr bool kExists[] = {true};
      combine_into(row, states, kExists);
    }
  }

 private:
  // An entry whose LSE is -infinity stands for no key. Its state must be finite, because it is
  // multiplied by 0.
  template <int kStride, int kQuads>
  LAZYROPE_DEVICE RowQuads<kQuads> state(int32 location, int32 kv_head, int32 quad) const {
    const int32 page = location / lse_.page_size;
    const int32 slot = location - page * lse_.page_size;
    const uint8* from = values_ + static_cast<uint64>(static_cast<uint32>(page)) * page_stride_ +
                        static_cast<uint32>(slot) * slot_stride_ +
                        static_cast<uint32>(kv_head) * head_stride_;
    const float lse = lse_of(page, slot, kv_head);
    RowQuads<kQuads> state;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) load_quad(state.value + 4 * i, from, quad + i * kStride);
    state.stats =
        lse == -infinity_f32() ? RowStats{kNoMaximum, 0.0f} : RowStats{lse * kLog2e, 1.0f};
    return state;
  }

  LAZYROPE_DEVICE float lse_of(int32 page, int32 slot, int32 kv_head) const {
    const int32 row = page * lse_.num_kv_heads + kv_head;
    return ld_global_nc(lse_.data + static_cast<int64>(row) * lse_.page_size + slot);
  }

  LAZYROPE_DEVICE static void load_quad(float* to, const uint8* row, int32 quad) {
    Word2 pairs;
    if constexpr (Product::kScaled) {
      const uint32 bytes = ld_global_nc(reinterpret_cast<const uint32*>(row) + quad);
      const Chunk wide = Product::Format::template widen_in_order<Element>(bytes, bytes);
      pairs = Word2{{wide.word[0], wide.word[1]}};
    } else {
      pairs = ld_global_nc(reinterpret_cast<const Word2*>(row) + quad);
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const FloatPair pair = Element::unpack(pairs.word[i]);
      to[2 * i] = pair.low;
      to[2 * i + 1] = pair.high;
    }
  }

  const uint8* values_;
  uint32 page_stride_;
  uint32 slot_stride_;
  uint32 head_stride_;
  EntryLse lse_;
};

}  // namespace lazyrope
