// The planner's table of tiles: six columns, with an entry for each tile and one more for the
// totals of prefix sums. make_tiles() and record_tile() write it (steps 2 and 3 of planning). The
// prefix sums fill in cost_begin and, with fixed splits, split_begin (step 5). Without fixed splits
// the queue keeps its sorted order in split_begin.
#pragma once

#include "abi/plan.h"
#include "isa/memory.cuh"

namespace lazyrope {

// kGroupLanes lanes write one work tile; kTileLanes lanes measure one tile. With at most
// kTilesAtOnce tiles, at least half of the warps then have no tile and leave the issue slots to the
// others.
inline constexpr int32 kGroupLanes = 8;
inline constexpr int32 kTileLanes = 4;
static_assert(kTilesAtOnce * kTileLanes <= kPlanThreads);

LAZYROPE_DEVICE Chunk chunk_of(int32 a, int32 b, int32 c, int32 d) {
  return {{static_cast<uint32>(a), static_cast<uint32>(b), static_cast<uint32>(c),
           static_cast<uint32>(d)}};
}

// A column of the table: an array with one T per tile.
template <class T>
class Column {
 public:
  LAZYROPE_DEVICE explicit Column(GenericPtr values) : values_(values) {}
  LAZYROPE_DEVICE T get(int32 i) const { return ld_generic<T>(at(i)); }
  LAZYROPE_DEVICE void set(int32 i, T value) const { st_generic(at(i), value); }

 private:
  LAZYROPE_DEVICE GenericPtr at(int32 i) const {
    return values_ + static_cast<int64>(i) * static_cast<int64>(sizeof(T));
  }
  GenericPtr values_;
};

// The table is in shared memory, or in global memory if a step may have more than kSharedTiles
// tiles. It is stored by columns: lanes with neighbouring tiles access different banks.
class PlanTable {
 public:
  LAZYROPE_DEVICE PlanTable(GenericPtr shared, const PlanScratch& scratch, int32 planner)
      : PlanTable(select_memory(shared, scratch, planner),
                  static_cast<uint32>(scratch.max_tiles) + 1) {}

 private:
  // A select, not a branch: a branch on scratch.tables would stall until it is loaded and delay the
  // loads after it.
  LAZYROPE_DEVICE static GenericPtr select_memory(GenericPtr shared, const PlanScratch& scratch,
                                                  int32 planner) {
    const GenericPtr global =
        generic(scratch.tables + planner * plan_table_bytes(scratch.max_tiles));
    return scratch.tables == nullptr ? shared : global;
  }

  LAZYROPE_DEVICE PlanTable(GenericPtr table, uint32 tiles)
      : rows(table),
        keys(table + int64{tiles * 16}),
        cost(table + int64{tiles * 32}),
        cost_begin(table + int64{tiles * 36}),
        splits(table + int64{tiles * 40}),
        split_begin(table + int64{tiles * 44}) {
    static_assert(sizeof(TileRows) == 16 && sizeof(TileKeys) == 16 && kPlanTileBytes == 48);
  }

 public:
  Column<TileRows> rows;
  Column<TileKeys> keys;
  Column<int32> cost;        // cost for one group of KV heads
  Column<int32> cost_begin;  // exclusive prefix sum of cost; entry num_tiles is the total
  Column<int32> splits;      // number of fixed splits
  // The exclusive prefix sum of splits. Without fixed splits: the queue's tiles by descending cost.
  Column<int32> split_begin;
};

}  // namespace lazyrope
