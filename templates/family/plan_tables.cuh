// The planner's table of tiles.
#pragma once

#include "abi/plan.h"
#include "isa/memory.cuh"

namespace lazyrope {

LAZYROPE_DEVICE Chunk chunk_of(int32 a, int32 b, int32 c, int32 d) {
  return {{static_cast<uint32>(a), static_cast<uint32>(b), static_cast<uint32>(c),
           static_cast<uint32>(d)}};
}

// What each tile's record has behind so many bytes.
template <class T, int32 kBehind>
class Column {
 public:
  LAZYROPE_DEVICE explicit Column(GenericPtr records) : records_(records) {}
  LAZYROPE_DEVICE T get(int32 i) const { return ld_generic<T>(at(i)); }
  LAZYROPE_DEVICE void set(int32 i, T value) const { st_generic(at(i), value); }

 private:
  LAZYROPE_DEVICE GenericPtr at(int32 i) const {
    return records_ + (static_cast<int64>(i) * kPlanTileBytes + kBehind);
  }
  GenericPtr records_;
};

// In shared memory, or where that has no room for all tiles of a step, in global memory.
class PlanTable {
 public:
  LAZYROPE_DEVICE PlanTable(SharedPtr memory, const PlanScratch& scratch, int32 planner)
      : PlanTable(scratch.tables == nullptr
                      ? generic(memory)
                      : generic(scratch.tables + planner * plan_table_bytes(scratch.max_tiles))) {}

 private:
  LAZYROPE_DEVICE explicit PlanTable(GenericPtr records)
      : rows(records), keys(records), cost_begin(records), part_begin(records) {}

 public:
  Column<TileRows, 0> rows;
  Column<TileKeys, 16> keys;
  Column<int32, 32> cost_begin;  // cost of all tiles before, for one KV head
  Column<int32, 36> part_begin;  // fixed parts of all tiles before, likewise; of a queue, its order
};

}  // namespace lazyrope
