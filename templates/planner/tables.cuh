// The planner's table of tiles.
#pragma once

#include "abi/plan.h"
#include "isa/memory.cuh"

namespace lazyrope {

LAZYROPE_DEVICE Chunk chunk_of(int32 a, int32 b, int32 c, int32 d) {
  return {{static_cast<uint32>(a), static_cast<uint32>(b), static_cast<uint32>(c),
           static_cast<uint32>(d)}};
}

// What there is of each tile.
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

// In shared memory, or where that has no room for all tiles of a step, in global memory. A column
// behind the other: lanes that read neighbours read different banks.
class PlanTable {
 public:
  LAZYROPE_DEVICE PlanTable(GenericPtr shared, const PlanScratch& scratch, int32 planner)
      : PlanTable(select_memory(shared, scratch, planner),
                  static_cast<uint32>(scratch.max_tiles) + 1) {}

 private:
  // Without a branch, which would wait for the parameters before anything else is asked for.
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
  Column<int32> cost;         // for one KV head
  Column<int32> cost_begin;   // of all tiles before; behind the last of all
  Column<int32> splits;       // fixed ones
  Column<int32> split_begin;  // of all tiles before, likewise; of a queue, its order
};

}  // namespace lazyrope
