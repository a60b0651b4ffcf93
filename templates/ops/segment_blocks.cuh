// How a segment's slots fall into KV blocks. Planner and attend must agree, so both call this.
#pragma once

#include "abi/step.h"
#include "isa/memory.cuh"
#include "isa/sync.cuh"
#include "ops/lanes.cuh"
#include "ops/mask/interval.cuh"

namespace lazyrope {

inline constexpr int kRunSlots = 16;  // slots that lie together, whatever the page size

// The slots of a segment that some row of a query tile can see, in blocks of slots from the run
// that holds the first of them.
struct VisibleSegment {
  SegmentRecord record;  // its begin: the first visible slot
  int32 end;             // one past the last

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

LAZYROPE_DEVICE VisibleSegment from_lane(const VisibleSegment& mine, int32 lane) {
  VisibleSegment s{};
  s.record.base = shfl_sync_idx(mine.record.base, lane);
  s.record.origin = shfl_sync_idx(mine.record.origin, lane);
  s.record.begin = shfl_sync_idx(mine.record.begin, lane);
  s.record.first_page = shfl_sync_idx(mine.record.first_page, lane);
  s.end = shfl_sync_idx(mine.end, lane);
  return s;
}

}  // namespace lazyrope
