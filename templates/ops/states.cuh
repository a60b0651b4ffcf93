// Attention states (abi/states.h): the look-up of the best entry of a memory for each query row,
// and how its state is combined with the row's other results.
//
// The best entries of each row are in shared memory: one RowEntries for each row of a warp. A KV
// split leaves them beside its partial result. The CTA that combines the splits of a row chooses
// the best of them, and only then reads that entry's state and LSE. So values are read once a row.
//
// Scores are compared as the products give them. Scale, softcap, temperature and the scale of 8-bit
// keys do not change their order. Of equal scores in one lane the first counts, otherwise the one
// in the lower page or slot. A score of 0 exceeds one of -0.
#pragma once

#include "abi/attend.h"
#include "ops/combine.cuh"
#include "ops/lanes.cuh"
#include "tile/warp_product.cuh"

namespace lazyrope {

// The location of an entry is the number of its page, and in the lower slot_bits() bits its slot in
// the page. There are fewer slots than kMaxLses, so it is below 2^32 - 1.
LAZYROPE_DEVICE int32 slot_bits(int32 page_size) { return floor_log2(page_size - 1) + 1; }

// Returns the order of a score, which is not NaN.
LAZYROPE_DEVICE uint32 order_of(float score) {
  const uint32 bits = float_as_bits(score);
  const auto sign = static_cast<uint32>(static_cast<int32>(bits) >> 31);
  return bits ^ (sign | 0x80000000u);
}
LAZYROPE_DEVICE BestEntry best_entry(float score, uint32 location) {
  return {~location, order_of(score)};
}
LAZYROPE_DEVICE BestEntry no_entry() { return {~0u, no_order()}; }
LAZYROPE_DEVICE bool is_entry(const BestEntry& best) { return best.order > no_order(); }
LAZYROPE_DEVICE bool is_better(const BestEntry& a, const BestEntry& b) {
  const auto number = [](const BestEntry& of) {
    return static_cast<uint64>(of.order) << 32 | of.inverse;
  };
  return number(a) > number(b);
}
LAZYROPE_DEVICE void improve(BestEntry& best, const BestEntry& other) {
  if (is_better(other, best)) best = other;
}
// Returns what the lane whose index differs in the bits of `mask` has.
LAZYROPE_DEVICE BestEntry shfl_best(const BestEntry& best, int32 mask) {
  return {shfl_sync_bfly(best.inverse, mask), shfl_sync_bfly(best.order, mask)};
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
    for (int i = 0; i < kMemories; ++i) lazyrope::improve(of[i], other.of[i]);
  }
  // Returns the first memory's entry, and moves the others forward. Loops over memories use this:
  // registers cannot be indexed at run time, and a CTA that executes code for the first time waits
  // for each line of it.
  LAZYROPE_DEVICE BestEntry take_first() {
    const BestEntry first = of[0];
#pragma unroll
    for (int i = 0; i + 1 < kMemories; ++i) of[i] = of[i + 1];
    return first;
  }
};
template <>
struct RowEntries<0> {};

// An entry that a lane has compared, by its number: an index that the look-up chooses.
struct alignas(8) ScoredEntry {
  float score;
  int32 number;  // or no_number()
};
constexpr int32 no_number() { return 0x7fffffff; }
LAZYROPE_DEVICE ScoredEntry no_scored_entry() { return {-infinity_f32(), no_number()}; }
LAZYROPE_DEVICE bool is_better(const ScoredEntry& a, const ScoredEntry& b) {
  return a.score > b.score || (a.score == b.score && a.number < b.number);
}

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
    ScoredEntry best = no_scored_entry();
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
      has_better |= order_of(best_of_lane(m, h).score) >
                    ld_shared<BestEntry>(best_entries + Access::row(m, h) * kStride).order;
  if (vote_sync_any(has_better)) {
    bar_warp_sync();  // all lanes have read the rows
#pragma unroll
    for (int m = 0; m < Access::kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const ScoredEntry of_lane = best_of_lane(m, h);
        BestEntry best = no_entry();
        if (of_lane.number != no_number())
          best = best_entry(of_lane.score, locate(first + of_lane.number));
#pragma unroll
        for (int mask = Access::kFirstMask; mask < Access::kEndMask; mask *= 2)
          improve(best, shfl_best(best, mask));
        const SharedPtr to = best_entries + Access::row(m, h) * kStride;
        if (Access::is_first_of_row() && is_better(best, ld_shared<BestEntry>(to)))
          st_shared(to, best);
      }
    bar_warp_sync();
  }
}

// The best entries of a memory that a lane has found in tiles of scores (TileAccess), in registers,
// for few rows. A warp's columns of a tile are consecutive slots of one page, so the locations of a
// lane's columns are as far apart as the columns are.
//
// There is no exchange between lanes before the end of the memory, and the code is short: at one
// request a CTA sees few tiles, and waits for each line of code that it executes for the first
// time.
template <int kGroupSize, class Scores>
class LaneScan {
  using Access = TileAccess<Scores>;
  static constexpr int kRows = 2 * Access::kRowTiles;
  static_assert(Access::kColumnTiles == 1 && is_power_of_two(kRows) &&
                kRows * Access::kFirstMask <= Access::kEndMask);

 public:
  LAZYROPE_DEVICE LaneScan() {
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      score_[i] = -infinity_f32();
      location_[i] = 0;
    }
  }

  // Compares a tile. `location` is that of the lane's first column. packed_row(row) returns the
  // packed row of the request that a row of the warp is.
  template <class PackedRow>
  LAZYROPE_DEVICE void scan(const Scores& scores, const EntryTile& tile, uint32 location,
                            const PackedRow& packed_row) {
    const int32 first = Access::first_column();
    const uint32 exists =
        Access::columns_before(tile.end - first) & ~Access::columns_before(tile.begin - first);
    if (tile.has_key_per_head) {
      compare(scores, location, [&](int m, int h, int i) {
        const int32 own =
            first_own_column<kGroupSize>(packed_row(Access::row(m, h)), tile.first_entry + first);
        return (exists >> i & 1) != 0 && Access::column_offset(0, i) % kGroupSize == own;
      });
    } else {
      compare(scores, location, [&](int, int, int i) { return (exists >> i & 1) != 0; });
    }
  }

  // Returns the best entry that the warp has found for row own_row(). In each step, a lane keeps
  // half of its rows and gives the others to a lane that keeps these.
  LAZYROPE_DEVICE BestEntry best_of_row() const {
    BestEntry best[kRows];
#pragma unroll
    for (int i = 0; i < kRows; ++i) best[i] = best_entry(score_[i], location_[i]);
    int mask = Access::kFirstMask;
#pragma unroll
    for (int count = kRows / 2; count > 0; count /= 2, mask *= 2) {
      const bool keeps_second = (lane_index() & mask) != 0;
#pragma unroll
      for (int i = 0; i < count; ++i) {
        const BestEntry own = keeps_second ? best[2 * i + 1] : best[2 * i];
        const BestEntry given = keeps_second ? best[2 * i] : best[2 * i + 1];
        best[i] = own;
        improve(best[i], shfl_best(given, mask));
      }
    }
#pragma unroll
    for (; mask < Access::kEndMask; mask *= 2) improve(best[0], shfl_best(best[0], mask));
    return best[0];
  }
  LAZYROPE_DEVICE static int32 own_row() {
    const int32 i = lane_index() / Access::kFirstMask % kRows;
    return Access::row(i / 2, i % 2);
  }
  // Returns true in one of the lanes with the same own_row().
  LAZYROPE_DEVICE static bool is_first_of_row() {
    return lane_index() < kRows * Access::kFirstMask;
  }

 private:
  template <class Counts>
  LAZYROPE_DEVICE void compare(const Scores& scores, uint32 location, const Counts& counts) {
#pragma unroll
    for (int row = 0; row < kRows; ++row)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float score = Access::at(scores, row / 2, 0, row % 2 * 2 + i);
        if (!counts(row / 2, row % 2, i) || !(score > score_[row])) continue;
        score_[row] = score;
        location_[row] = location + static_cast<uint32>(Access::column_offset(0, i));
      }
  }

  float score_[kRows];
  uint32 location_[kRows];
};

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

  // Adds an entry to kQuads quads of a row, kStride quads from one to the next.
  template <int kStride, int kQuads>
  LAZYROPE_DEVICE void add(RowQuads<kQuads>& row, int32 kv_head, int32 quad,
                           const BestEntry& entry) const {
    const RowQuads<kQuads> states[] = {state<kStride, kQuads>(~entry.inverse, kv_head, quad)};
    constexpr bool kExists[] = {true};
    combine_into(row, states, kExists);
  }
  // Prefetches what add() loads for all quads of a row.
  LAZYROPE_DEVICE void prefetch(int32 kv_head, const BestEntry& entry) const {
    constexpr int32 kLineBytes = 128;
    constexpr int32 kBytes = Spec::kHeadDim * (Product::kScaled ? 1 : 2);
    const EntryAddress at = address_of(~entry.inverse, kv_head);
    prefetch_global_l2(at.lse);
#pragma unroll
    for (int32 line = 0; line < kBytes; line += kLineBytes) prefetch_global_l2(at.state + line);
  }
  // Adds the best entries of a row's memories.
  template <int kStride, int kQuads>
  LAZYROPE_DEVICE void add_all(RowQuads<kQuads>& row, int32 kv_head, int32 quad,
                               RowEntries<kMemories> best) const {
#pragma unroll 1
    for (int i = 0; i < kMemories; ++i) {
      const BestEntry entry = best.take_first();
      if (is_entry(entry)) add<kStride>(row, kv_head, quad, entry);
    }
  }

 private:
  // An entry whose LSE is -infinity stands for no key. Its state must be finite, because it is
  // multiplied by 0.
  template <int kStride, int kQuads>
  LAZYROPE_DEVICE RowQuads<kQuads> state(uint32 location, int32 kv_head, int32 quad) const {
    const EntryAddress at = address_of(location, kv_head);
    const float lse = ld_global_nc(at.lse);
    RowQuads<kQuads> state;
#pragma unroll
    for (int i = 0; i < kQuads; ++i) load_quad(state.value + 4 * i, at.state, quad + i * kStride);
    state.stats =
        lse == -infinity_f32() ? RowStats{kNoMaximum, 0.0f} : RowStats{lse * kLog2e, 1.0f};
    return state;
  }

  struct EntryAddress {
    const uint8* state;
    const float* lse;
  };
  LAZYROPE_DEVICE EntryAddress address_of(uint32 location, int32 kv_head) const {
    const int32 bits = slot_bits(lse_.page_size);
    const uint32 page = location >> bits;
    const uint32 slot = location - (page << bits);
    const int32 row = static_cast<int32>(page) * lse_.num_kv_heads + kv_head;
    return {values_ + static_cast<uint64>(page) * page_stride_ + slot * slot_stride_ +
                static_cast<uint32>(kv_head) * head_stride_,
            lse_.data + static_cast<int64>(row) * lse_.page_size + slot};
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
