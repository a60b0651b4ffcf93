// Steps 1 and 5 of planning: loads from the caller's arrays (StepInputs), and the copy of segments
// and positions for attend (StepView).
//
// The functions return values as they are loaded. Any arithmetic on a value would wait for its
// load, and the planner issues many loads before it needs the first.
#pragma once

#include "ops/segment_blocks.cuh"
#include "planner/tables.cuh"

namespace lazyrope {

// The range of a request's query tokens.
struct TokenRange {
  int32 begin;
  int32 end;

  LAZYROPE_DEVICE int32 count() const { return end - begin; }
};

// The ranges of a request's query tokens and segments.
struct RequestRange {
  int32 token;
  int32 token_end;
  int32 segment;
  int32 segment_end;

  LAZYROPE_DEVICE int32 num_tokens() const { return token_end - token; }
};

// A segment as the caller describes it, without its pages.
struct CallerSegment {
  int32 base;
  int32 mask_base;
  int32 start;
  int32 length;
  int32 lead;
  int32 code;  // 0 unless the kernels are those of attention states

  // Returns the segment's record without its pages. In a memory, the origin counts entries.
  template <bool kHasStates = false>
  LAZYROPE_DEVICE SegmentRecord slots() const {
    const int32 origin = kHasStates && is_memory(code) ? -lead : mask_base + start - lead;
    return {base, origin, lead, lead + length, 0, kHasStates ? code : 0, {0, 0}};
  }
};

// The values that one thread copies at a time: segment `index` and the position of token `index`.
struct StepCopy {
  int32 index;
  CallerSegment segment;
  int32 first_page;
  int32 position;
};

class CallerInputs {
 public:
  // CTA `cta` of num_ctas copies its part of the step. `counts` is null unless the step is a shared
  // one.
  LAZYROPE_DEVICE CallerInputs(const PlanParams& params, int32 cta, int32 num_ctas,
                               const SharedCounts* counts)
      : in_(params.inputs),
        mask_base_(in_.mask_base == nullptr ? in_.base : in_.mask_base),
        first_runs_(params.first_runs),
        step_(params.step),
        page_size_(params.page_size),
        cta_(cta),
        num_ctas_(num_ctas),
        num_requests_(counts == nullptr ? in_.num_requests : ld_global_nc(&counts->requests)),
        num_segments_(counts == nullptr ? in_.num_segments : num_requests_),
        num_copied_(counts == nullptr ? larger(in_.num_segments, in_.num_tokens)
                                      : larger(num_requests_, ld_global_nc(&counts->tokens))) {}

  LAZYROPE_DEVICE int32 num_requests() const { return num_requests_; }
  LAZYROPE_DEVICE int32 position(int32 token) const { return ld_global_nc(in_.q_position + token); }

  // Returns the token range of request i, or an empty one after the last request.
  LAZYROPE_DEVICE TokenRange tokens(int32 i) const {
    if (i >= num_requests_) return {0, 0};
    return {ld_global_nc(in_.q_indptr + i), ld_global_nc(in_.q_indptr + i + 1)};
  }

  // Returns request i, or an empty one after the last.
  LAZYROPE_DEVICE RequestRange request(int32 i) const {
    if (i >= num_requests_) return {0, 0, 0, 0};
    return {ld_global_nc(in_.q_indptr + i), ld_global_nc(in_.q_indptr + i + 1),
            ld_global_nc(in_.segment_indptr + i), ld_global_nc(in_.segment_indptr + i + 1)};
  }

  template <bool kHasStates>
  LAZYROPE_DEVICE CallerSegment segment(int32 i) const {
    return {ld_global_nc(in_.base + i),
            ld_global_nc(mask_base_ + i),
            ld_global_nc(in_.start + i),
            ld_global_nc(in_.length + i),
            in_.lead == nullptr ? 0 : ld_global_nc(in_.lead + i),
            !kHasStates || first_runs_ == nullptr ? 0 : ld_global_nc(first_runs_ + i)};
  }
  LAZYROPE_DEVICE int32 first_page(int32 i) const { return ld_global_nc(in_.first_page + i); }
  // Returns SegmentRecord::first_run.
  LAZYROPE_DEVICE int32 first_run(int32 i) const {
    const int32 lead = in_.lead == nullptr ? 0 : ld_global_nc(in_.lead + i);
    return ld_global_nc(first_runs_ + i) - lead / kRunSlots;
  }

  // Returns the address of the page number that holds a slot of a segment.
  LAZYROPE_DEVICE const int32* page(const SegmentRecord& segment, int32 slot) const {
    return in_.pages + segment.first_page + quotient(slot, page_size_);
  }
  LAZYROPE_DEVICE int32 page_size() const { return page_size_.value; }
  LAZYROPE_DEVICE int32 slot_in_page(int32 slot) const {
    return slot - quotient(slot, page_size_) * page_size_.value;
  }

  // The CTAs of both phases together copy segments and positions for attend. begin_copy() loads a
  // thread's first elements. copy() stores these and copies the thread's other elements. Work
  // between the two calls hides the loads.
  template <bool kHasStates>
  LAZYROPE_DEVICE StepCopy begin_copy() const {
    // The last warps come first, because the first warps write more work tiles.
    const int32 warp = kPlanThreads / kWarpThreads - 1 - warp_index();
    return load<kHasStates>((warp * num_ctas_ + cta_) * kWarpThreads + lane_index());
  }
  template <bool kNumbersRuns, bool kHasStates>
  LAZYROPE_DEVICE void copy(StepCopy chunk) const {
    if (cta_ == 0 && thread_index() == kPlanThreads - 1)
      st_global(step_.header, StepHeader{in_.pages, in_.page_size, 0});
#pragma unroll 1
    while (chunk.index < num_copied_) {
      store<kNumbersRuns, kHasStates>(chunk);
      chunk = load<kHasStates>(chunk.index + num_ctas_ * kPlanThreads);
    }
  }

  // Prefetches segments and positions to L2 where there are few requests, before it is known which
  // request needs which. The last warps do this, because they measure no tiles then.
  LAZYROPE_DEVICE void prefetch_segments() const {
    if (num_requests_ > kTilesAtOnce) return;
    const int32 i = (kPlanThreads - 1 - thread_index()) * kLineInts;
    if (i >= larger(in_.num_segments, in_.num_tokens)) return;
    if (i < in_.num_tokens) prefetch_global_l2(in_.q_position + i);
    if (i >= in_.num_segments) return;
    prefetch_global_l2(in_.base + i);
    prefetch_global_l2(in_.start + i);
    prefetch_global_l2(in_.length + i);
  }

 private:
  static constexpr int32 kLineInts = 32;  // int32 per L2 cache line
  static constexpr int32 kLines = 4;      // cache lines prefetched of a segment's page list

  template <bool kHasStates>
  LAZYROPE_DEVICE StepCopy load(int32 i) const {
    StepCopy copy = {i, {}, 0, 0};
    if (i < num_segments_) {
      copy.segment = segment<kHasStates>(i);
      copy.first_page = first_page(i);
    }
    if (i < in_.num_tokens) copy.position = position(i);
    return copy;
  }
  template <bool kNumbersRuns, bool kHasStates>
  LAZYROPE_DEVICE void store(const StepCopy& copy) const {
    if (copy.index < in_.num_tokens) st_global(step_.positions + copy.index, copy.position);
    if (copy.index >= num_segments_) return;
    SegmentRecord record = copy.segment.template slots<kHasStates>();
    record.first_page = copy.first_page;
    if constexpr (kNumbersRuns) record.first_run = first_run(copy.index);
    // The only block of a segment with cells has the segment's index in place of a position.
    if (kHasStates && has_cells(record.first_run))
      record.origin = copy.index - run_begin(record.begin);
    auto* to = reinterpret_cast<Chunk*>(step_.segments + copy.index);
    st_global(to, chunk_of(record.base, record.origin, record.begin, record.end));
    st_global(to + 1, chunk_of(record.first_page, record.first_run, 0, 0));
    prefetch_pages(record);
  }

  // Prefetches page numbers that work tiles soon need: the first lines of a segment's page list,
  // and its last page.
  LAZYROPE_DEVICE void prefetch_pages(const SegmentRecord& segment) const {
    const int32 count = segment.end > segment.begin ? ceil_div(segment.end, page_size_) : 0;
    const int32* pages = in_.pages + segment.first_page;
#pragma unroll
    for (int32 line = 0; line < kLines; ++line)
      if (line * kLineInts < count) prefetch_global_l2(pages + line * kLineInts);
    if (count > 0) prefetch_global_l2(pages + count - 1);
  }

  const StepInputs& in_;
  // The bases if the caller gives no mask bases. A choice between the loaded values would wait for
  // the load of the base before the loads of the next segment.
  const int32* mask_base_;
  const int32* first_runs_;  // kernels of attention states have the memory codes of segments here
  const StepView& step_;
  const Divisor& page_size_;
  int32 cta_;
  int32 num_ctas_;
  int32 num_requests_;
  int32 num_segments_;
  int32 num_copied_;  // the number of segments or of query tokens, whichever is greater
};

}  // namespace lazyrope
