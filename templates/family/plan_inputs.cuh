// What the planner reads: the caller's arrays, and their copy for attend.
#pragma once

#include "family/plan_tables.cuh"
#include "ops/segment_blocks.cuh"

namespace lazyrope {

// What of a request its tiles are made of.
struct RequestSpan {
  int32 token;
  int32 token_end;
  int32 segment;
  int32 segment_end;
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

// Neighbours, the first a multiple of kQuadSpans.
inline constexpr int32 kQuadSpans = sizeof(Chunk) / sizeof(int32);
struct SpanQuad {
  SegmentSpan span[kQuadSpans];
};

class CallerStep {
 public:
  LAZYROPE_DEVICE explicit CallerStep(const PlanParams& params)
      : in_(params.inputs), step_(params.step), page_size_(params.page_size) {}

  LAZYROPE_DEVICE int32 num_requests() const { return in_.num_requests; }
  LAZYROPE_DEVICE int32 position(int32 token) const { return ld_global_nc(in_.q_position + token); }

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
  // Of those behind the last nothing is said.
  LAZYROPE_DEVICE SpanQuad quad(int32 first) const {
    SpanQuad quad;
    if (has_aligned_spans() && first + kQuadSpans <= in_.num_segments) [[likely]] {
      const Chunk base = ld_chunk(in_.base + first);
      const Chunk start = ld_chunk(in_.start + first);
      const Chunk length = ld_chunk(in_.length + first);
      const Chunk lead = in_.lead == nullptr ? Chunk{} : ld_chunk(in_.lead + first);
#pragma unroll
      for (int32 i = 0; i < kQuadSpans; ++i)
        quad.span[i] = {static_cast<int32>(base.word[i]), static_cast<int32>(start.word[i]),
                        static_cast<int32>(length.word[i]), static_cast<int32>(lead.word[i])};
    } else {
#pragma unroll
      for (int32 i = 0; i < kQuadSpans; ++i)
        quad.span[i] = span(smaller(first + i, in_.num_segments - 1));
    }
    return quad;
  }
  LAZYROPE_DEVICE SegmentRecord segment(int32 i) const {
    const int32 first_page = ld_global_nc(in_.first_page + i);
    SegmentRecord record = span(i).slots();
    record.first_page = first_page;
    return record;
  }

  // The page that has a slot of a segment.
  LAZYROPE_DEVICE int32 page(const SegmentRecord& segment, int32 slot) const {
    return ld_global_nc(in_.pages + segment.first_page + quotient(slot, page_size_));
  }
  LAZYROPE_DEVICE int32 page_size() const { return page_size_.value; }
  LAZYROPE_DEVICE int32 slot_in_page(int32 slot) const {
    return slot - quotient(slot, page_size_) * page_size_.value;
  }

  // What attend reads beside its items, by all CTAs together.
  LAZYROPE_DEVICE void copy() const {
    if (block_index() == 0 && thread_index() == 0)
      st_global(step_.header, StepHeader{in_.pages, in_.page_size, 0});
    const int32 end = larger(in_.num_segments, in_.num_tokens);
    const int32 first = (warp_index() * grid_blocks() + block_index()) * kWarpThreads;
#pragma unroll 1
    for (int32 i = first + lane_index(); i < end; i += grid_blocks() * block_threads()) {
      const bool is_segment = i < in_.num_segments;
      const bool is_token = i < in_.num_tokens;
      const SegmentRecord record = is_segment ? segment(i) : SegmentRecord{};
      const int32 position = is_token ? this->position(i) : 0;
      if (is_segment) store(record, step_.segments + i);
      if (is_token) st_global(step_.positions + i, position);
      prefetch_pages(record);
    }
  }

 private:
  LAZYROPE_DEVICE static Chunk ld_chunk(const int32* words) {
    return ld_global_nc(reinterpret_cast<const Chunk*>(words));
  }
  LAZYROPE_DEVICE bool has_aligned_spans() const {
    const auto bits = [](const int32* words) { return reinterpret_cast<uint64>(words); };
    return ((bits(in_.base) | bits(in_.start) | bits(in_.length) | bits(in_.lead)) &
            (sizeof(Chunk) - 1)) == 0;
  }

  static constexpr int32 kLineInts = 32;  // of a line of the L2 cache
  static constexpr int32 kLines = 4;      // of a segment's page list

  LAZYROPE_DEVICE static void store(const SegmentRecord& record, SegmentRecord* to) {
    auto* chunks = reinterpret_cast<Chunk*>(to);
    st_global(chunks, chunk_of(record.base, record.origin, record.begin, record.end));
    st_global(chunks + 1, chunk_of(record.first_page, 0, 0, 0));
  }

  // Items are soon to be made of some of these pages.
  LAZYROPE_DEVICE void prefetch_pages(const SegmentRecord& segment) const {
    const int32 count = ceil_div(segment.end, page_size_);
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
