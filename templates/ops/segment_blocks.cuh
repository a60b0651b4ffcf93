// Divides a segment's slots into KV blocks. The planner and the attend kernels both use this file,
// because they must agree.
#pragma once

#include "abi/step.h"
#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "ops/lanes.cuh"
#include "ops/mask/interval.cuh"

namespace lazyrope {

// The slots of a segment that some row of a query tile can see. The first block begins with the run
// that has the first visible slot.
struct VisibleSegment {
  SegmentRecord record;  // record.begin is the first visible slot
  int32 end;             // one past the last visible slot

  LAZYROPE_DEVICE int32 first_slot() const { return record.begin & ~(kRunSlots - 1); }

  template <class Slots>
  LAZYROPE_DEVICE int32 blocks(const Slots& block_slots) const {
    return end > record.begin ? ceil_div(end - first_slot(), block_slots) : 0;
  }
};

template <class Mask>
LAZYROPE_DEVICE VisibleSegment visible_segment(SegmentRecord record, PositionRange queries) {
  record.begin = visible_begin<Mask>(queries.first, record.origin, record.begin, record.end);
  return {record, visible_end<Mask>(queries.last, record.origin, record.end)};
}

// Returns another lane's segment, without record.end. All lanes of the warp take part.
template <bool kNumbersRuns = false>
LAZYROPE_DEVICE VisibleSegment from_lane(const VisibleSegment& mine, int32 lane) {
  VisibleSegment s{};
  s.record.base = shfl_sync_idx(mine.record.base, lane);
  s.record.origin = shfl_sync_idx(mine.record.origin, lane);
  s.record.begin = shfl_sync_idx(mine.record.begin, lane);
  s.record.first_page = shfl_sync_idx(mine.record.first_page, lane);
  if constexpr (kNumbersRuns) s.record.first_run = shfl_sync_idx(mine.record.first_run, lane);
  s.end = shfl_sync_idx(mine.end, lane);
  return s;
}

}  // namespace lazyrope
