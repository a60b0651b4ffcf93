// The look-up in entries that are in cells (abi/states.h), for query rows of one KV head.
//
// Warps divide the centres, and each finds the best of its own for all rows. They agree on each
// row's best centre, and then divide the entries of that row's cell in the same way. Rows that have
// the same cell are looked up together.
//
// Keys go from global memory to registers, because the kernel knows too late which ones it needs to
// have their copies in flight ahead. A product has 16 query rows and 8 keys. The order of columns
// does not matter to a product, so each lane takes whole chunks of eight columns: lane 4 k + c has
// chunks c, c + 4, c + 8, ... of key k and of query rows k and k + 8.
#pragma once

#include "ops/lanes.cuh"
#include "ops/pool_offset.cuh"
#include "ops/states.cuh"

namespace lazyrope {

// The best entries of the two rows of a lane: lane / 4 and lane / 4 + 8. They have the numbers of
// entries in the segment. The four lanes of a row have the same ones.
struct LaneEntries {
  ScoredEntry of[2] = {no_scored_entry(), no_scored_entry()};

  LAZYROPE_DEVICE void improve(int h, const ScoredEntry& other) {
    if (is_better(other, of[h])) of[h] = other;
  }
};

// The query rows of a look-up, at most 16: rows `first` and following of a tile in shared memory.
template <class Tile>
struct CellQueries {
  SharedPtr tile;
  int32 first;
  int32 count;
  int32 packed;  // the packed row of the request that the first one is
};

// The warps that look up together. A warp alone is {0, 1}.
struct WarpShare {
  int32 index;
  int32 count;
};

// The slots of a segment with cells.
struct CellSlots {
  const int32* pages;  // the segment's page list
  int32 lead;          // the slot of entry 0
  int32 num_cells;
  int32 cell;  // the entries of a cell
};

LAZYROPE_DEVICE CellSlots cell_slots(const StepView& step, int32 segment, int32 code) {
  const SegmentRecord* record = step.segments + segment;
  const Chunk slots = ld_global_nc(reinterpret_cast<const Chunk*>(record));
  const int32 first_page = ld_global_nc(&record->first_page);
  const auto* pages = reinterpret_cast<const int32*>(
      ld_global_nc(reinterpret_cast<const uint64*>(&step.header->pages)));
  const int32 lead = static_cast<int32>(slots.word[2]);
  const int32 cell = cell_entries(code);
  const int32 length = static_cast<int32>(slots.word[3]) - lead;
  return {pages + first_page, lead, length / (cell + 1), cell};
}

template <class Spec, class Tile>
class CellLookUp {
  using Product = typename Spec::Product;
  using Element = typename Spec::Element;
  using Queries = CellQueries<Tile>;
  static constexpr int kChunks = Spec::kHeadDim / 8;  // chunks of eight columns
  static constexpr int kSteps = ceil_div(kChunks, 4);
  static constexpr int kKeyTiles = 2;  // with more, registers would spill
  static constexpr int kKeys = 8 * kKeyTiles;
  static constexpr int kUnrolledSteps = 2;  // loads of so many steps are in flight
  static constexpr int kChunkBytes = Product::kScaled ? 8 : 16;
  static constexpr int kRowTileRows = 16;

 public:
  // The rows that one look-up can have.
  static constexpr int32 kRows = kRowTileRows;

  LAZYROPE_DEVICE CellLookUp(const AttendParams& params, const CellSlots& slots, int32 code,
                             int32 kv_head, WarpShare share)
      : pool_(params.pool),
        page_size_(params.entry_lse.page_size),
        slots_(slots),
        has_centre_per_head_(has_key_per_head(code)),
        kv_head_(kv_head),
        share_(share) {}

  // Returns the best entry of each row. combine(entries) finds the best ones of all warps that
  // share the look-up; these give all of them the same rows. All lanes of the warps take part.
  template <class Combine>
  LAZYROPE_DEVICE LaneEntries find(const Queries& queries, const Combine& combine) const {
    const bool exists[] = {row(0) < queries.count, row(1) < queries.count};
    LaneEntries centre;
    prefetch(slots_.num_cells, [&](int32 i) { return slots_.num_cells * slots_.cell + i; });
    scan(centre, queries, {slots_.num_cells * slots_.cell, slots_.num_cells}, exists,
         has_centre_per_head_);
    combine(centre);
    prefetch(queries.count * slots_.cell, [&](int32 i) {
      const int32 row = i / slots_.cell;
      const int32 number = centre_of(centre, row);
      return number == no_number() ? 0 : cell_of(number) * slots_.cell + i - row * slots_.cell;
    });
    LaneEntries best;
#pragma unroll 1
    for (int32 i = 0; i < queries.count; ++i) {
      const int32 number = centre_of(centre, i);
      bool serves[2];
      bool is_before = false;  // an earlier row has the same cell
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        serves[h] = exists[h] && centre.of[h].number == number;
        is_before |= serves[h] && row(h) < i;
      }
      if (vote_sync_any(is_before) || warp_uniform(number == no_number())) continue;
      scan(best, queries, {cell_of(number) * slots_.cell, slots_.cell}, serves, false);
    }
    combine(best);
    return best;
  }

  // Improves the best entries of the rows in shared memory, kStride bytes apart, by those that
  // find() returned.
  template <int kStride>
  LAZYROPE_DEVICE void store(const LaneEntries& found, SharedPtr rows, int32 count) const {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const ScoredEntry& entry = found.of[h];
      if (!RowLanes::is_first() || row(h) >= count || entry.number == no_number()) continue;
      const SharedPtr to = rows + row(h) * kStride;
      const BestEntry best = best_entry(entry.score, location(entry.number));
      if (is_better(best, ld_shared<BestEntry>(to))) st_shared(to, best);
    }
  }

  LAZYROPE_DEVICE static int32 row(int h) { return RowLanes::row(0, h); }

 private:
  struct EntryRange {
    int32 first;
    int32 count;
  };

  LAZYROPE_DEVICE int32 cell_of(int32 centre) const {
    return centre - slots_.num_cells * slots_.cell;
  }

  // Returns the number of a row's best centre. All lanes take part, each for a row of its own.
  LAZYROPE_DEVICE static int32 centre_of(const LaneEntries& centre, int32 row) {
    const int32 lane = row % 8 * 4;
    const int32 low = shfl_sync_idx(centre.of[0].number, lane);
    const int32 high = shfl_sync_idx(centre.of[1].number, lane);
    return row < 8 ? low : high;
  }

  // Compares the keys of some entries with the rows' best ones, for the lane's rows that they
  // serve. With is_per_head, the i-th of them serves one query head.
  LAZYROPE_DEVICE void scan(LaneEntries& best, const Queries& queries, EntryRange range,
                            const bool (&serves)[2], bool is_per_head) const {
    int32 own_column[2];  // the remainder of the columns that serve the row's head
#pragma unroll
    for (int h = 0; h < 2; ++h)
      own_column[h] = static_cast<int32>(static_cast<uint32>(queries.packed + row(h)) %
                                         static_cast<uint32>(Spec::kGroupSize));
#pragma unroll 1
    for (int32 first = share_.index * kKeys; first < range.count; first += share_.count * kKeys) {
      float scores[kKeyTiles][4] = {};
      multiply(scores, queries, range, first);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int h = i / 2;
          const int32 column = first + 8 * n + column_of(lane_index(), i);
          const bool is_own =
              !is_per_head ||
              static_cast<int32>(static_cast<uint32>(column) %
                                 static_cast<uint32>(Spec::kGroupSize)) == own_column[h];
          if (serves[h] && is_own && column < range.count && scores[n][i] > best.of[h].score)
            best.of[h] = {scores[n][i], range.first + column};
        }
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int mask = RowLanes::kFirstMask; mask < RowLanes::kEndMask; mask *= 2)
        best.improve(
            h, {shfl_sync_bfly(best.of[h].score, mask), shfl_sync_bfly(best.of[h].number, mask)});
  }

  // Computes the scores of kKeys entries of a range. Past its end the last entry is repeated.
  LAZYROPE_DEVICE void multiply(float (&scores)[kKeyTiles][4], const Queries& queries,
                                EntryRange range, int32 first) const {
    const int32 lane_chunk = lane_index() % 4;
    const uint8* keys[kKeyTiles];
#pragma unroll
    for (int n = 0; n < kKeyTiles; ++n) {
      const int32 key = smaller(first + 8 * n + lane_index() / 4, range.count - 1);
      keys[n] = address(range.first + key) + lane_chunk * kChunkBytes;
    }
#pragma unroll kUnrolledSteps
    for (int step = 0; step < kSteps; ++step) {
      const bool exists = 4 * step + lane_chunk < kChunks;
      uint32 a[2][4];
      load_queries(a, queries, 4 * step + lane_chunk, exists);
#pragma unroll
      for (int n = 0; n < kKeyTiles; ++n) {
        const Chunk key = exists ? load_chunk(keys[n] + step * 4 * kChunkBytes) : Chunk{};
#pragma unroll
        for (int i = 0; i < 2; ++i)
          Element::mma(scores[n], a[i], key.word[2 * i], key.word[2 * i + 1]);
      }
    }
  }

  // Loads the lane's chunk of its two rows, as operand A of two products.
  LAZYROPE_DEVICE static void load_queries(uint32 (&a)[2][4], const Queries& queries, int32 chunk,
                                           bool exists) {
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      const bool is_row = exists && row(h) < queries.count;
      const Chunk columns =
          is_row ? ld_shared<Chunk>(Tile::chunk(queries.tile, queries.first + row(h), chunk))
                 : Chunk{};
#pragma unroll
      for (int i = 0; i < 4; ++i) a[i / 2][i % 2 * 2 + h] = columns.word[i];
    }
  }

  LAZYROPE_DEVICE static Chunk load_chunk(const uint8* from) {
    if constexpr (Product::kScaled) {
      const Word2 bytes = ld_global_nc(reinterpret_cast<const Word2*>(from));
      return Product::Format::template widen_in_order<Element>(bytes.word[0], bytes.word[1]);
    } else {
      return ld_global_nc(reinterpret_cast<const Chunk*>(from));
    }
  }

  // Prefetches the keys of entries entry(0) to entry(count - 1), because a warp has registers for
  // few loads at once. All lanes take part in entry().
  template <class Entry>
  LAZYROPE_DEVICE void prefetch(int32 count, const Entry& entry) const {
    constexpr int32 kLineBytes = 128;
    const int32 rank = share_.index * kWarpThreads + lane_index();
#pragma unroll 4
    for (int32 first = 0; first < count; first += share_.count * kWarpThreads) {
      const uint8* key = address(entry(smaller(first + rank, count - 1)));
#pragma unroll
      for (int32 line = 0; line < kChunks * kChunkBytes; line += kLineBytes)
        prefetch_global_l2(key + line);
    }
  }

  struct PageSlot {
    int32 page;
    int32 slot;
  };
  LAZYROPE_DEVICE PageSlot page_slot(int32 entry) const {
    const auto slot = static_cast<uint32>(slots_.lead + entry);
    const uint32 page = slot / static_cast<uint32>(page_size_);
    return {ld_global_nc(slots_.pages + page),
            static_cast<int32>(slot - page * static_cast<uint32>(page_size_))};
  }
  LAZYROPE_DEVICE const uint8* address(int32 entry) const {
    const PageSlot at = page_slot(entry);
    return static_cast<const uint8*>(pool_.keys) + pool_offset(pool_, at.page, at.slot, kv_head_);
  }
  LAZYROPE_DEVICE uint32 location(int32 entry) const {
    const PageSlot at = page_slot(entry);
    return (static_cast<uint32>(at.page) << slot_bits(page_size_)) + static_cast<uint32>(at.slot);
  }

  const KvPool& pool_;
  int32 page_size_;
  CellSlots slots_;
  bool has_centre_per_head_;
  int32 kv_head_;
  WarpShare share_;
};

}  // namespace lazyrope
