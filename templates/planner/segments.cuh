// Steps 3 and 7 of planning: counts the KV blocks of a request's segments that a tile's rows see,
// and finds the segment in which a block is.
//
// kLanes lanes serve one tile. If the tile's request has at most kLanes segments, each lane has
// one. Otherwise the lanes look at 32 segments at a time: lane i at segments i, i + kLanes, ...
#pragma once

#include "planner/inputs.cuh"

namespace lazyrope {

struct VisibleCounts {
  int32 blocks;
  int32 segments;
  int32 first;  // first segment that is seen, or the request's end
};

// A block of a segment. `index` is the segment's number in the step, `block` the number among the
// segment's visible blocks.
struct BlockLocation {
  VisibleSegment segment;
  int32 index;
  int32 block;
};

// The segments of a request. All lanes of a warp take part, each group of kLanes for its own
// request. A group without a request gives an empty range. With kHasStates, segments have memory
// codes.
template <class Mask, int32 kLanes, bool kHasStates>
class SegmentGroup {
 public:
  LAZYROPE_DEVICE SegmentGroup(const CallerInputs& caller, const Divisor& block_keys, int32 segment,
                               int32 segment_end)
      : caller_(caller), block_keys_(block_keys), begin_(segment), end_(segment_end) {}

  // Counts the blocks and segments that the queries see. `find_queries` is called after the loads
  // of the first segments are issued, so that its own loads overlap with these.
  template <class FindQueries>
  LAZYROPE_DEVICE VisibleCounts count_visible(const FindQueries& find_queries) const {
    const LaneSegments<1> loaded = load_segments<1>(begin_);
    const PositionRange queries = find_queries();
    VisibleCounts seen = {0, 0, end_};
    if (are_few()) {
      add(seen, queries, loaded, begin_);
    } else {
#pragma unroll 1
      for (int32 first = begin_; vote_sync_any(first < end_); first += kMany * kLanes)
        add(seen, queries, load_segments<kMany>(first), first);
    }
#pragma unroll
    for (int mask = kLanes / 2; mask > 0; mask /= 2)
      seen = {seen.blocks + shfl_sync_bfly(seen.blocks, mask),
              seen.segments + shfl_sync_bfly(seen.segments, mask),
              smaller(seen.first, shfl_sync_bfly(seen.first, mask))};
    return seen;
  }

  // Finds a block by its number among all visible blocks of the request.
  LAZYROPE_DEVICE BlockLocation find(PositionRange queries, int32 block) const {
    Search search = {queries, block, false, {}};
    if (are_few()) {
      search_among<1>(search, begin_);
    } else {
#pragma unroll 1
      for (int32 first = begin_; vote_sync_any(!search.is_found && first < end_);
           first += kMany * kLanes)
        search_among<kMany>(search, first);
    }
    return search.found;
  }

 private:
  static constexpr int32 kMany = 32 / kLanes;  // segments of one lane

  LAZYROPE_DEVICE bool are_few() const { return !vote_sync_any(begin_ + kLanes < end_); }

  // The segments of a lane, kLanes apart. Segments past the request's last are empty.
  template <int32 kCount>
  struct LaneSegments {
    CallerSegment of_lane[kCount];
  };
  template <int32 kCount>
  LAZYROPE_DEVICE LaneSegments<kCount> load_segments(int32 first) const {
    LaneSegments<kCount> segments{};
#pragma unroll
    for (int32 i = 0; i < kCount; ++i)
      if (index_of(first, i) < end_)
        segments.of_lane[i] = caller_.template segment<kHasStates>(index_of(first, i));
    return segments;
  }
  LAZYROPE_DEVICE static int32 index_of(int32 first, int32 i) {
    return first + i * kLanes + group_lane<kLanes>();
  }
  LAZYROPE_DEVICE static VisibleSegment visible(const CallerSegment& segment,
                                                PositionRange queries) {
    return visible_segment<Mask, kHasStates>(segment.template slots<kHasStates>(), queries);
  }

  template <int32 kCount>
  LAZYROPE_DEVICE void add(VisibleCounts& seen, PositionRange queries,
                           const LaneSegments<kCount>& segments, int32 first) const {
#pragma unroll
    for (int32 i = 0; i < kCount; ++i) {
      const int32 blocks =
          visible(segments.of_lane[i], queries).template blocks<kHasStates>(block_keys_);
      seen.blocks += blocks;
      seen.segments += blocks > 0 ? 1 : 0;
      seen.first = smaller(seen.first, blocks > 0 ? index_of(first, i) : end_);
    }
  }

  struct Search {
    PositionRange queries;
    int32 block;  // counted from the first segment not yet searched
    bool is_found;
    BlockLocation found;
  };

  // Prefix sums of the visible blocks over the group's lanes, one segment a lane.
  struct LaneCount {
    VisibleSegment visible;
    int32 before;  // visible blocks of the lanes before this one
    int32 through;
    int32 all;
  };
  LAZYROPE_DEVICE LaneCount count_lane(const CallerSegment& segment, int32 first_page,
                                       PositionRange queries) const {
    VisibleSegment seen = visible(segment, queries);
    seen.record.first_page = first_page;
    const int32 blocks = seen.template blocks<kHasStates>(block_keys_);
    const int32 through = prefix_sum<kLanes>(blocks);
    return {seen, through - blocks, through, group_shfl<kLanes>(through, kLanes - 1)};
  }

  // Searches kCount * kLanes segments. The lane that has the block gives its segment to the others
  // by shuffles: loading it again would take longer.
  template <int32 kCount>
  LAZYROPE_DEVICE void search_among(Search& search, int32 first) const {
    // Pages are loaded before segments, because the arithmetic on the segments waits for their
    // loads.
    int32 first_page[kCount];
#pragma unroll
    for (int32 i = 0; i < kCount; ++i)
      first_page[i] = index_of(first, i) < end_ ? caller_.first_page(index_of(first, i)) : 0;
    const LaneSegments<kCount> loaded = load_segments<kCount>(first);
    LaneCount own = count_lane(loaded.of_lane[0], first_page[0], search.queries);
    int32 own_first = first;  // segment of the group's first lane
    // While the block is after these kLanes segments, the next kLanes replace them.
    bool goes_on = true;
#pragma unroll
    for (int32 i = 1; i < kCount; ++i) {
      const LaneCount next = count_lane(loaded.of_lane[i], first_page[i], search.queries);
      goes_on = goes_on && search.block >= own.all;
      if (!goes_on) continue;
      search.block -= own.all;
      own = next;
      own_first = first + i * kLanes;
    }
    const int32 owner = group_upper_bound<kLanes>(own.through, search.block);
    const BlockLocation location = {
        from_lane<kHasStates>(own.visible, first_lane<kLanes>() + owner), own_first + owner,
        search.block - group_shfl<kLanes>(own.before, owner)};
    if (!search.is_found && search.block < own.all) {
      search.found = location;
      search.is_found = true;
    }
    search.block -= own.all;
  }

  const CallerInputs& caller_;
  const Divisor& block_keys_;
  int32 begin_;
  int32 end_;
};

}  // namespace lazyrope
