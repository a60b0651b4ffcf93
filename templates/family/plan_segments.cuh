// How many blocks of a request's segments a tile's rows see. Eight lanes look at 32 segments
// together, each at four neighbours.
#pragma once

#include "family/plan_inputs.cuh"

namespace lazyrope {

inline constexpr int32 kGroupSegments = kGroupLanes * kQuadSpans;

LAZYROPE_DEVICE int32 group_lane() { return lane_index() % kGroupLanes; }

// The value of a lane of the same group.
LAZYROPE_DEVICE int32 group_shfl(int32 value, int32 lane) {
  return shfl_sync_idx(value, first_lane<kGroupLanes>() + lane);
}

struct SeenSegments {
  int32 blocks;
  int32 segments;
  int32 first;  // that is seen
};

// A block of a segment.
struct BlockPlace {
  VisibleSegment segment;
  int32 block;
};

// A request's segments. All lanes of a warp look together, each group at a request of its own; one
// that has none gives an empty range.
template <class Mask>
class SegmentGroup {
 public:
  LAZYROPE_DEVICE SegmentGroup(const CallerStep& caller, const Divisor& block_keys, int32 segment,
                               int32 segment_end)
      : caller_(caller), block_keys_(block_keys), begin_(segment), end_(segment_end) {}

  // `find_queries` is called once the first segments are asked for.
  template <class FindQueries>
  LAZYROPE_DEVICE SeenSegments look(const FindQueries& find_queries) const {
    PositionRange queries{};
    SeenSegments seen = {0, 0, end_};
    SpanQuad asked{};
    // The next are asked for before it is looked at what was asked for.
#pragma unroll 1
    for (int32 at = 0; at == 0 || vote_sync_any(has(at - kGroupSegments)); at += kGroupSegments) {
      const SpanQuad next = quad(at);
      if (at == 0)
        queries = find_queries();
      else
        add(seen, queries, asked, at - kGroupSegments);
      asked = next;
    }
#pragma unroll
    for (int mask = kGroupLanes / 2; mask > 0; mask /= 2)
      seen = {seen.blocks + shfl_sync_bfly(seen.blocks, mask),
              seen.segments + shfl_sync_bfly(seen.segments, mask),
              smaller(seen.first, shfl_sync_bfly(seen.first, mask))};
    return seen;
  }

  // Where a block lies, of which there are so many before. One lane has it and tells the others:
  // another load would take longer.
  LAZYROPE_DEVICE BlockPlace find(PositionRange queries, int32 block) const {
    BlockPlace place{};
    bool is_found = false;
#pragma unroll 1
    for (int32 at = 0; vote_sync_any(!is_found && has(at)); at += kGroupSegments) {
      // Before the spans, as what is made of these waits for them before it goes on.
      const PageQuad pages = segment(at) < end_ ? caller_.first_pages(segment(at)) : PageQuad{};
      const SpanQuad quad = this->quad(at);
      VisibleSegment visible[kQuadSpans];
      int32 blocks[kQuadSpans];
      int32 sum = 0;
#pragma unroll
      for (int32 i = 0; i < kQuadSpans; ++i) {
        visible[i] = visible_segment<Mask>(quad.span[i].slots(), queries);
        visible[i].record.first_page = pages.first[i];
        blocks[i] = is_own(segment(at) + i) ? visible[i].blocks(block_keys_) : 0;
        sum += blocks[i];
      }
      const int32 through = prefix_sum<kGroupLanes>(sum);
      const int32 owner = upper_bound_of_group<kGroupLanes>(through, block);
      const int32 all = group_shfl(through, kGroupLanes - 1);
      BlockPlace mine = {visible[0], block - through + sum};
      bool is_behind = true;
#pragma unroll
      for (int32 i = 0; i + 1 < kQuadSpans; ++i) {
        is_behind = is_behind && mine.block >= blocks[i];
        if (is_behind) mine = {visible[i + 1], mine.block - blocks[i]};
      }
      mine = {from_lane(mine.segment, first_lane<kGroupLanes>() + owner),
              group_shfl(mine.block, owner)};
      if (!is_found && block < all) {
        place = mine;
        is_found = true;
      }
      block -= all;
    }
    return place;
  }

 private:
  // The lane's first of those that are looked at together, `at` behind the request's first; a
  // multiple of kQuadSpans.
  LAZYROPE_DEVICE int32 segment(int32 at) const {
    return (begin_ & ~(kQuadSpans - 1)) + at + group_lane() * kQuadSpans;
  }
  LAZYROPE_DEVICE bool is_own(int32 segment) const { return segment >= begin_ && segment < end_; }
  LAZYROPE_DEVICE bool has(int32 at) const { return (begin_ & ~(kQuadSpans - 1)) + at < end_; }
  LAZYROPE_DEVICE SpanQuad quad(int32 at) const {
    return segment(at) < end_ ? caller_.quad(segment(at)) : SpanQuad{};
  }

  LAZYROPE_DEVICE int32 blocks(const SegmentSpan& span, int32 segment,
                               PositionRange queries) const {
    if (!is_own(segment)) return 0;
    return visible_segment<Mask>(span.slots(), queries).blocks(block_keys_);
  }

  LAZYROPE_DEVICE void add(SeenSegments& seen, PositionRange queries, const SpanQuad& quad,
                           int32 at) const {
#pragma unroll
    for (int32 i = 0; i < kQuadSpans; ++i) {
      const int32 blocks = this->blocks(quad.span[i], segment(at) + i, queries);
      if (blocks > 0)
        seen = {seen.blocks + blocks, seen.segments + 1, smaller(seen.first, segment(at) + i)};
    }
  }

  const CallerStep& caller_;
  const Divisor& block_keys_;
  int32 begin_;
  int32 end_;
};

}  // namespace lazyrope
