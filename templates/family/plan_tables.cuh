// The planner's table of tiles.
#pragma once

#include "abi/plan.h"
#include "isa/memory.cuh"

namespace lazyrope {

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

// In global memory where it is given some, else in shared memory.
template <class T>
class AnyColumn {
 public:
  LAZYROPE_DEVICE AnyColumn(SharedPtr shared, T* global, int64 first)
      : shared_(shared), global_(global == nullptr ? nullptr : global + first) {}
  LAZYROPE_DEVICE T get(int32 i) const {
    return global_ == nullptr ? shared_.get(i) : ld_global(global_ + i);
  }
  LAZYROPE_DEVICE void set(int32 i, T value) const {
    if (global_ == nullptr)
      shared_.set(i, value);
    else
      st_global(global_ + i, value);
  }

 private:
  SharedColumn<T> shared_;
  T* global_;
};

// Of a step, so that it fits an int32, and what it is compared with as well: hundreds of requests
// of a million tokens.
inline constexpr int32 kMostSharedCost = 1 << 30;

// Of a table in shared memory, in PlanScratch's words.
struct SharedPlaces {
  static constexpr int kBytes = kSharedTiles * 32 + (kSharedTiles + 2) * 12;

  SharedPtr rows;
  SharedPtr keys;
  SharedPtr cost_begin;
  SharedPtr part_begin;

  LAZYROPE_DEVICE explicit SharedPlaces(SharedPtr memory)
      : rows(memory),
        keys(memory + kSharedTiles * 16),
        cost_begin(memory + kSharedTiles * 32),
        part_begin(memory + kSharedTiles * 32 + (kSharedTiles + 2) * 8) {}
};

// For steps that cost less than kMostSharedCost.
struct SharedTiles {
  using Cost = int32;

  SharedColumn<TileRows> rows;
  SharedColumn<TileKeys> keys;
  SharedColumn<int32> cost_begin;
  SharedColumn<int32> part_begin;

  LAZYROPE_DEVICE SharedTiles(SharedPtr memory, const PlanScratch&, int32)
      : SharedTiles(SharedPlaces(memory)) {}

 private:
  LAZYROPE_DEVICE explicit SharedTiles(const SharedPlaces& at)
      : rows(at.rows), keys(at.keys), cost_begin(at.cost_begin), part_begin(at.part_begin) {}
};

// Wherever there is room for all tiles.
struct AnyTiles {
  using Cost = int64;

  AnyColumn<TileRows> rows;
  AnyColumn<TileKeys> keys;
  AnyColumn<int64> cost_begin;
  AnyColumn<int32> part_begin;

  LAZYROPE_DEVICE AnyTiles(SharedPtr memory, const PlanScratch& scratch, int32 planner)
      : AnyTiles(SharedPlaces(memory), scratch,
                 static_cast<int64>(planner) * (scratch.max_tiles + 1)) {}

 private:
  LAZYROPE_DEVICE AnyTiles(const SharedPlaces& shared, const PlanScratch& scratch, int64 first)
      : rows(shared.rows, scratch.rows, first),
        keys(shared.keys, scratch.keys, first),
        cost_begin(shared.cost_begin, scratch.cost_begin, first),
        part_begin(shared.part_begin, scratch.part_begin, first) {}
};

}  // namespace lazyrope
