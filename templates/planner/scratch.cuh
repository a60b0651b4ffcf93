// ScratchPlanner is the common part of plan_rotation and plan_packing, which give the segments of a
// step's prefill requests places in the step's scratch, or leave them in the pool.
#pragma once

#include "abi/rotation.h"
#include "ops/lanes.cuh"

namespace lazyrope {

template <int kThreads>
class ScratchPlanner {
 protected:
  LAZYROPE_DEVICE explicit ScratchPlanner(const PlanRotationParams& params)
      : params_(params), in_(params.inputs) {}

  // Returns the segment's request if it is one of prefill, and -1 otherwise.
  LAZYROPE_DEVICE int32 prefill_request(int32 segment) const {
    if (segment >= in_.num_segments) return -1;
    const auto begin = [&](int32 i) { return ld_global_nc(in_.segment_indptr + i); };
    const int32 request = upper_bound(in_.num_requests + 1, segment, begin) - 1;
    if (request < 0 || request >= in_.num_requests) return -1;
    return tokens_of(request) * params_.group_size >= params_.min_rows ? request : -1;
  }
  LAZYROPE_DEVICE int32 tokens_of(int32 request) const {
    return ld_global_nc(in_.q_indptr + request + 1) - ld_global_nc(in_.q_indptr + request);
  }
  LAZYROPE_DEVICE int32 lead_of(int32 segment) const {
    return in_.lead == nullptr ? 0 : ld_global_nc(in_.lead + segment);
  }

  // Empties the first work tiles of attention to the pool. Each thread of the grid, whose number is
  // given, empties some: without rows, a CTA ends at once.
  LAZYROPE_DEVICE void empty_work_tiles(int32 thread) const {
    for (int32 i = thread; i < params_.num_unrotated_ctas; i += grid_blocks() * kThreads)
      st_global(&params_.unrotated_work_tiles[i].extent, WorkTileExtent{0, 0, 0, 0});
  }

  // Writes the header, and those arrays of RotatedInputs that tell whether attention reads the
  // scratch. One CTA calls this.
  LAZYROPE_DEVICE void write_inputs(bool uses_scratch, int32 num_runs) const {
    const int32 thread = thread_index();
    if (thread == 0)
      st_global(params_.header, RotationHeader{uses_scratch ? num_runs : 0, {0, 0, 0}});
    for (int32 i = thread; i <= in_.num_requests; i += kThreads)
      st_global(params_.rotated.q_indptr + i, uses_scratch ? ld_global_nc(in_.q_indptr + i) : 0);
    if (uses_scratch) return;
    // Nothing reads the segments if no query token does, but the planner prefetches their pages.
    for (int32 i = thread; i < in_.num_segments; i += kThreads) {
      st_global(params_.rotated.first_page + i, 0);
      st_global(params_.rotated.length + i, 0);
    }
  }

  const PlanRotationParams& params_;
  const StepInputs& in_;
};

}  // namespace lazyrope
