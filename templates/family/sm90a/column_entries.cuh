// The best entries of attention states (abi/states.h) for the rows of a consumer warpgroup of the
// decode kernel: how its warps agree on them, and how it looks up entries in cells.
//
// Reads: rotated queries [kRows, head_dim] in shared memory; the segment's record, pages and keys
// in global memory, if its entries are in cells.
// Writes: one RowEntries for each row, in shared memory. What warps give to each other takes the
// memory of their maxima and sums (ColumnScratchLayout).
//
// Role: all warps of a consumer warpgroup call each function together, and synchronize by
// Team::sync(): named barrier 2 or, with several warpgroups, 3 + group (decode_kernel.cuh). It
// protects what warps give to each other, and the entries of rows.
#pragma once

#include "family/sm90a/tile_memory.cuh"
#include "ops/cells.cuh"

namespace lazyrope {

// The team of a warpgroup, whose warps compute together. With one warpgroup this is the team of all
// consumers, and its index needs no computation.
template <class Memory, int kGroups = Memory::kGroups>
struct ColumnTeam {
  using Type = typename Memory::ConsumerGroups;
  LAZYROPE_DEVICE static int32 group() { return Type::team(); }
};
template <class Memory>
struct ColumnTeam<Memory, 1> {
  using Type = typename Memory::Consumers;
  LAZYROPE_DEVICE static int32 group() { return 0; }
};

template <class Spec, class Memory>
class ColumnEntries {
  using Team = typename ColumnTeam<Memory>::Type;
  using QueryTile = typename Spec::Product::QueryTile;
  using LookUp = CellLookUp<Spec, QueryTile>;
  // The KV heads and the rows of the warpgroup.
  static constexpr int kHeads = Memory::kHeads / Memory::kGroups;
  static constexpr int kRows = Memory::kRows / Memory::kGroups;
  static constexpr int kWarps = Memory::kGroupWarps;
  static constexpr ColumnScratchLayout kScratch =
      column_scratch_layout(kRows, Spec::Product::kWeightBytes);
  static constexpr int kEntryBytes = sizeof(BestEntry);
  static_assert(sizeof(ScoredEntry) == kEntryBytes &&
                kWarps * kRows * kEntryBytes == kScratch.row_maxima - kScratch.warp_maxima);

 public:
  LAZYROPE_DEVICE explicit ColumnEntries(Memory memory)
      : scratch_(memory.consumer_scratch() + group() * kScratch.bytes),
        entries_(memory.entries() + group() * (kRows * kRowEntryBytes)) {}

  // Returns the RowEntries of the warpgroup's rows.
  LAZYROPE_DEVICE SharedPtr rows() const { return entries_; }

  LAZYROPE_DEVICE void reset() const {
    Team::sync();  // all warps have read the previous entries
    reset_entries(entries_, kRows, Team::rank(), Team::size());
  }

  // Finds the best entry of each row among those that the lanes have found (LaneScan), and improves
  // the row's entry of a memory.
  template <class Found>
  LAZYROPE_DEVICE void improve_by(const Found& found, int32 memory) const {
    const BestEntry of_warp = found.best_of_row();
    if (Found::is_first_of_row()) st_shared(of_warp_at(Team::warp(), Found::own_row()), of_warp);
    Team::sync();
    if (const int32 row = Team::rank(); row < kRows) {
      const SharedPtr to = entry_of(entries_ + row * kRowEntryBytes, memory);
      auto best = ld_shared<BestEntry>(to);
#pragma unroll
      for (int32 warp = 0; warp < kWarps; ++warp)
        improve(best, ld_shared<BestEntry>(of_warp_at(warp, row)));
      st_shared(to, best);
    }
    Team::sync();
  }

  // Prefetches the states and the LSEs of the rows' best entries. They may be the best of all KV
  // splits. The CTA that combines a row then finds them in L2.
  LAZYROPE_DEVICE void prefetch_states(const AttendParams& params, WorkTilePtr work_tile) const {
    const int32 i = Team::rank();
    if (i >= kRows * kMaxMemories) return;
    const auto entry = ld_shared<BestEntry>(entries_ + i * kEntryBytes);
    const int32 head = i / kMaxMemories / Memory::kHeadRows;
    if (is_entry(entry))
      EntryStates<Spec>(params).prefetch(work_tile.rows().kv_head + group() * kHeads + head, entry);
  }

  // Looks up the entries of segment `segment`, which are in cells. `queries` are the rotated
  // queries of the warpgroup's rows.
  //
  // This function is inlined although a flat look-up has to pass over its code: as a function
  // of its own it leaves too few registers to its caller, which then spills.
  LAZYROPE_DEVICE static void look_up_cells(const AttendParams& params, Memory memory,
                                            WorkTilePtr work_tile, SharedPtr queries, int32 segment,
                                            int32 code) {
    const ColumnEntries entries(memory);
    const WorkTileRows rows = rows_of_head(work_tile.rows(), group() * kHeads);
    const int32 num_rows = work_tile.extent().num_rows;
    const CellSlots slots = cell_slots(params.step, segment, code);
#pragma unroll 1
    for (int32 head = 0; head < kHeads; ++head) {
      const LookUp look_up(params, slots, code, rows.kv_head + head, {Team::warp(), kWarps});
#pragma unroll 1
      for (int32 row = 0; row < num_rows; row += LookUp::kRows) {
        const int32 first = head * (kRows / kHeads) + row;
        const int32 count = smaller(num_rows - row, LookUp::kRows);
        const LaneEntries found =
            look_up.find({queries, first, count, rows.first_row + row},
                         [&](LaneEntries& best) { entries.combine_warps(best, first, count); });
        // All warps have found the same entries.
        if (Team::warp() == 0)
          look_up.template store<kRowEntryBytes>(
              found, entry_of(entries.entries_ + first * kRowEntryBytes, memory_index(code)),
              count);
      }
    }
  }

 private:
  LAZYROPE_DEVICE static int32 group() { return ColumnTeam<Memory>::group(); }
  // Returns the address at which a warp gives its best entry of a row to the others, a BestEntry or
  // a ScoredEntry.
  LAZYROPE_DEVICE SharedPtr of_warp_at(int32 warp, int32 row) const {
    return scratch_ + (kScratch.warp_maxima + (warp * kRows + row) * kEntryBytes);
  }

  // Finds the best entries of the warpgroup for `count` rows from row `first` on.
  LAZYROPE_DEVICE void combine_warps(LaneEntries& best, int32 first, int32 count) const {
    const auto row_of_warp = [&](int32 warp, int h) {
      return of_warp_at(warp, first + RowLanes::row(0, h));
    };
#pragma unroll
    for (int h = 0; h < 2; ++h)
      if (RowLanes::is_first() && RowLanes::row(0, h) < count)
        st_shared(row_of_warp(Team::warp(), h), best.of[h]);
    Team::sync();
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int32 warp = 0; warp < kWarps; ++warp)
        if (RowLanes::row(0, h) < count)
          best.improve(h, ld_shared<ScoredEntry>(row_of_warp(warp, h)));
    Team::sync();
  }

  SharedPtr scratch_;
  SharedPtr entries_;
};

}  // namespace lazyrope
