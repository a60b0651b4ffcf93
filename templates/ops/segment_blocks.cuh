// Divides a segment's slots into KV blocks. The planner and the attend kernels both use this file,
// because they must agree.
#pragma once

#include "abi/states.h"
#include "abi/step.h"
#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "ops/compile_time.cuh"
#include "ops/lanes.cuh"
#include "ops/mask/interval.cuh"

namespace lazyrope {

// Returns the first slot of the run that has a slot.
constexpr int32 run_begin(int32 slot) { return slot & ~(kRunSlots - 1); }

// The slots of a segment that some row of a query tile can see. The first block begins with the run
// that has the first visible slot.
struct VisibleSegment {
  SegmentRecord record;  // record.begin is the first visible slot
  int32 end;             // one past the last visible slot

  LAZYROPE_DEVICE int32 first_slot() const { return run_begin(record.begin); }

  // With kHasStates, a block of entries has 2 * block_slots slots.
  template <bool kHasStates = false, class Slots>
  LAZYROPE_DEVICE int32 blocks(const Slots& block_slots) const {
    const int32 count = end > record.begin ? ceil_div(end - first_slot(), block_slots) : 0;
    if constexpr (kHasStates) return is_memory(record.first_run) ? (count + 1) / 2 : count;
    return count;
  }
};

// Returns by how much the slots of a segment's blocks exceed those of a block of tokens.
template <bool kHasStates>
LAZYROPE_DEVICE int32 slots_factor(int32 code) {
  return kHasStates && is_memory(code) ? 2 : 1;
}

// Returns the slots of a segment's blocks, where those of tokens have kBlockSlots. Without states
// this is a constant, so that kernels without states have the code that a literal gives.
template <int32 kBlockSlots, bool kHasStates>
LAZYROPE_DEVICE auto slots_of_blocks(int32 code) {
  if constexpr (kHasStates)
    return kBlockSlots * slots_factor<kHasStates>(code);
  else
    return Constant<kBlockSlots>();
}

// Returns the number of blocks of a work tile's first segment, from the work tile's first one on.
template <int32 kBlockSlots, bool kHasStates>
LAZYROPE_DEVICE int32 count_blocks(const WorkTileStart& start) {
  return ceil_div(start.end, slots_of_blocks<kBlockSlots, kHasStates>(run_of(start.begin)));
}

// With kHasStates, record.first_run is the segment's memory code. All rows see all entries of a
// memory. Of entries in cells, only the first run counts: one block.
template <class Mask, bool kHasStates = false>
LAZYROPE_DEVICE VisibleSegment visible_segment(SegmentRecord record, PositionRange queries) {
  if constexpr (kHasStates) {
    if (has_cells(record.first_run))
      return {record, smaller(record.end, run_begin(record.begin) + kRunSlots)};
    if (is_memory(record.first_run)) return {record, record.end};
  }
  record.begin = visible_begin<Mask>(queries.first, record.origin, record.begin, record.end);
  return {record, visible_end<Mask>(queries.last, record.origin, record.end)};
}

// Returns another lane's segment, without record.end. All lanes of the warp take part. With
// kHasFirstRun, that includes record.first_run.
template <bool kHasFirstRun = false>
LAZYROPE_DEVICE VisibleSegment from_lane(const VisibleSegment& mine, int32 lane) {
  VisibleSegment s{};
  s.record.base = shfl_sync_idx(mine.record.base, lane);
  s.record.origin = shfl_sync_idx(mine.record.origin, lane);
  s.record.begin = shfl_sync_idx(mine.record.begin, lane);
  s.record.first_page = shfl_sync_idx(mine.record.first_page, lane);
  if constexpr (kHasFirstRun) s.record.first_run = shfl_sync_idx(mine.record.first_run, lane);
  s.end = shfl_sync_idx(mine.end, lane);
  return s;
}

}  // namespace lazyrope
