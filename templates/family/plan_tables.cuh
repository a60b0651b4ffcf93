// The planner's table of tiles.
#pragma once

#include "abi/plan.h"
#include "isa/memory.cuh"

namespace lazyrope {

// That look at a tile together, or at an item.
inline constexpr int32 kGroupLanes = 8;

LAZYROPE_DEVICE Chunk chunk_of(int32 a, int32 b, int32 c, int32 d) {
  return {{static_cast<uint32>(a), static_cast<uint32>(b), static_cast<uint32>(c),
           static_cast<uint32>(d)}};
}

template <class T>
class SharedColumn {
 public:
  LAZYROPE_DEVICE explicit SharedColumn(SharedPtr memory) : memory_(memory) {}
  LAZYROPE_DEVICE T get(int32 i) const { return ld_shared<T>(at(i)); }
  LAZYROPE_DEVICE void set(int32 i, T value) const { st_shared(at(i), value); }

 private:
  LAZYROPE_DEVICE SharedPtr at(int32 i) const {
    return memory_ + i * static_cast<int32>(sizeof(T));
  }
  SharedPtr memory_;
};

template <class T>
class GlobalColumn {
 public:
  LAZYROPE_DEVICE explicit GlobalColumn(T* memory) : memory_(memory) {}
  LAZYROPE_DEVICE T get(int32 i) const { return ld_global(memory_ + i); }
  LAZYROPE_DEVICE void set(int32 i, T value) const { st_global(memory_ + i, value); }

 private:
  T* memory_;
};

// In PlanScratch's words.
struct SharedTiles {
  static constexpr int kBytes = kSharedTiles * 32 + (kSharedTiles + 2) * 12;

  SharedColumn<TileRows> rows;
  SharedColumn<TileKeys> keys;
  SharedColumn<int64> cost_begin;
  SharedColumn<int32> part_begin;

  LAZYROPE_DEVICE SharedTiles(SharedPtr memory, const PlanScratch&, int32)
      : rows(memory),
        keys(memory + kSharedTiles * 16),
        cost_begin(memory + kSharedTiles * 32),
        part_begin(memory + kSharedTiles * 32 + (kSharedTiles + 2) * 8) {}
};

struct GlobalTiles {
  GlobalColumn<TileRows> rows;
  GlobalColumn<TileKeys> keys;
  GlobalColumn<int64> cost_begin;
  GlobalColumn<int32> part_begin;

  LAZYROPE_DEVICE GlobalTiles(SharedPtr, const PlanScratch& scratch, int32 planner)
      : rows(scratch.rows + offset(scratch, planner)),
        keys(scratch.keys + offset(scratch, planner)),
        cost_begin(scratch.cost_begin + offset(scratch, planner)),
        part_begin(scratch.part_begin + offset(scratch, planner)) {}

 private:
  LAZYROPE_DEVICE static int64 offset(const PlanScratch& scratch, int32 planner) {
    return static_cast<int64>(planner) * (scratch.max_tiles + 1);
  }
};

}  // namespace lazyrope
