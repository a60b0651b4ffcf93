// The planner's tables: tiles, and the boundaries between the CTAs of the attend kernel.
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

// Where a CTA of the attend kernel begins.
struct alignas(8) Place {
  int32 unit;
  int32 block;  // of the unit

  LAZYROPE_DEVICE bool operator==(const Place& other) const {
    return unit == other.unit && block == other.block;
  }
};

// What is summed over the boundaries before one.
struct alignas(8) Standing {
  int32 num_others;  // items of CTAs before it, without the first of each
  int32 rank;        // distinct boundaries before it
};

// Items of a CTA.
LAZYROPE_DEVICE int32 num_items_between(Place begin, Place end) {
  return begin == end ? 0 : end.unit - begin.unit + (end.block > 0 ? 1 : 0);
}

// By the number of a CTA; what there is of the cuts inside one unit, by the number of such units
// before.
template <int32 kMaxBoundaries>
struct Boundaries {
  static constexpr int kBytes = kMaxBoundaries * 28;

  SharedColumn<Place> place;
  SharedColumn<Standing> standing;
  SharedColumn<int32> cuts_of;  // the number of the boundary's unit, where it lies inside of one
  SharedColumn<int32> first_rank;
  SharedColumn<int32> last_rank;

  LAZYROPE_DEVICE explicit Boundaries(SharedPtr memory)
      : place(memory),
        standing(memory + kMaxBoundaries * 8),
        cuts_of(memory + kMaxBoundaries * 16),
        first_rank(memory + kMaxBoundaries * 20),
        last_rank(memory + kMaxBoundaries * 24) {}
};

}  // namespace lazyrope
