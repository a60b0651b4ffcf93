// What the planner reads: the caller's arrays, and their copy for attend.
#pragma once

#include "ops/segment_blocks.cuh"
#include "planner/tables.cuh"

namespace lazyrope {

// As it is loaded, likewise what follows: what is made of it waits for the load.
struct TokenSpan {
  int32 begin;
  int32 end;

  LAZYROPE_DEVICE int32 count() const { return end - begin; }
};

// What of a request its tiles are made of.
struct RequestSpan {
  int32 token;
  int32 token_end;
  int32 segment;
  int32 segment_end;

  LAZYROPE_DEVICE int32 num_tokens() const { return token_end - token; }
};

// What the caller says of a segment, but for its pages. Nothing is made of it as it is loaded: that
// would wait for the load.
struct SegmentSpan {
  int32 base;
  int32 start;
  int32 length;
  int32 lead;

  // Without its pages.
  LAZYROPE_DEVICE SegmentRecord slots() const {
    return {base, base + start - lead, lead, lead + length, 0, {0, 0, 0}};
  }
};

// What a thread copies of a step, as it is loaded.
struct StepCopy {
  int32 index;
  SegmentSpan span;
  int32 first_page;
  int32 position;
};

class CallerInputs {
 public:
  LAZYROPE_DEVICE explicit CallerInputs(const PlanParams& params)
      : in_(params.inputs), step_(params.step), page_size_(params.page_size) {}

  LAZYROPE_DEVICE int32 num_requests() const { return in_.num_requests; }
  LAZYROPE_DEVICE int32 position(int32 token) const { return ld_global_nc(in_.q_position + token); }

  // Of a request; none behind the last.
  LAZYROPE_DEVICE TokenSpan tokens(int32 i) const {
    if (i >= in_.num_requests) return {0, 0};
    return {ld_global_nc(in_.q_indptr + i), ld_global_nc(in_.q_indptr + i + 1)};
  }

  // Empty behind the last.
  LAZYROPE_DEVICE RequestSpan request(int32 i) const {
    if (i >= in_.num_requests) return {0, 0, 0, 0};
    return {ld_global_nc(in_.q_indptr + i), ld_global_nc(in_.q_indptr + i + 1),
            ld_global_nc(in_.segment_indptr + i), ld_global_nc(in_.segment_indptr + i + 1)};
  }

  LAZYROPE_DEVICE SegmentSpan span(int32 i) const {
    return {ld_global_nc(in_.base + i), ld_global_nc(in_.start + i), ld_global_nc(in_.length + i),
            in_.lead == nullptr ? 0 : ld_global_nc(in_.lead + i)};
  }
  LAZYROPE_DEVICE int32 first_page(int32 i) const { return ld_global_nc(in_.first_page + i); }

  // Where the page lies that has a slot of a segment.
  LAZYROPE_DEVICE const int32* page(const SegmentRecord& segment, int32 slot) const {
    return in_.pages + segment.first_page + quotient(slot, page_size_);
  }
  LAZYROPE_DEVICE int32 page_size() const { return page_size_.value; }
  LAZYROPE_DEVICE int32 slot_in_page(int32 slot) const {
    return slot - quotient(slot, page_size_) * page_size_.value;
  }

  // What attend reads beside its work tiles, by all CTAs together: a thread's first part, and then,
  // from that on, all of it. Between the two there is other work to be done, while the first is
  // loaded.
  LAZYROPE_DEVICE StepCopy begin_copy() const {
    // By the last warps first: others write more work tiles.
    const int32 warp = kPlanThreads / kWarpThreads - 1 - warp_index();
    return load((warp * grid_blocks() + block_index()) * kWarpThreads + lane_index());
  }
  LAZYROPE_DEVICE void copy(StepCopy chunk) const {
    if (block_index() == 0 && thread_index() == kPlanThreads - 1)
      st_global(step_.header, StepHeader{in_.pages, in_.page_size, 0});
#pragma unroll 1
    while (chunk.index < larger(in_.num_segments, in_.num_tokens)) {
      store(chunk);
      chunk = load(chunk.index + grid_blocks() * kPlanThreads);
    }
  }

  // What few requests are measured by, while it is not yet known which of it is whose. By the last
  // warps, which measure none.
  LAZYROPE_DEVICE void prefetch_segments() const {
    if (in_.num_requests > kTilesAtOnce) return;
    const int32 i = (kPlanThreads - 1 - thread_index()) * kLineInts;
    if (i >= larger(in_.num_segments, in_.num_tokens)) return;
    if (i < in_.num_tokens) prefetch_global_l2(in_.q_position + i);
    if (i >= in_.num_segments) return;
    prefetch_global_l2(in_.base + i);
    prefetch_global_l2(in_.start + i);
    prefetch_global_l2(in_.length + i);
  }

 private:
  static constexpr int32 kLineInts = 32;  // of a line of the L2 cache
  static constexpr int32 kLines = 4;      // of a segment's page list

  LAZYROPE_DEVICE StepCopy load(int32 i) const {
    StepCopy copy = {i, {}, 0, 0};
    if (i < in_.num_segments) {
      copy.span = span(i);
      copy.first_page = first_page(i);
    }
    if (i < in_.num_tokens) copy.position = position(i);
    return copy;
  }
  LAZYROPE_DEVICE void store(const StepCopy& copy) const {
    if (copy.index < in_.num_tokens) st_global(step_.positions + copy.index, copy.position);
    if (copy.index >= in_.num_segments) return;
    SegmentRecord record = copy.span.slots();
    record.first_page = copy.first_page;
    auto* to = reinterpret_cast<Chunk*>(step_.segments + copy.index);
    st_global(to, chunk_of(record.base, record.origin, record.begin, record.end));
    st_global(to + 1, chunk_of(record.first_page, 0, 0, 0));
    prefetch_pages(record);
  }

  // Work tiles are soon to be made of some of these pages.
  LAZYROPE_DEVICE void prefetch_pages(const SegmentRecord& segment) const {
    const int32 count = segment.end > segment.begin ? ceil_div(segment.end, page_size_) : 0;
    const int32* pages = in_.pages + segment.first_page;
#pragma unroll
    for (int32 line = 0; line < kLines; ++line)
      if (line * kLineInts < count) prefetch_global_l2(pages + line * kLineInts);
    if (count > 0) prefetch_global_l2(pages + count - 1);
  }

  const StepInputs& in_;
  const StepView& step_;
  const Divisor& page_size_;
};

}  // namespace lazyrope
