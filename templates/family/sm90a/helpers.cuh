// The warps of a CTA that bring and prepare what others compute on. Warp 0 finds where blocks lie,
// warp 1 copies keys and values, the next turn queries, and one may make what these turn them by;
// or they make what consumers turn theirs by. Where there are others, they have nothing to do.
#pragma once

#include "family/sm90a/block_finder.cuh"
#include "family/sm90a/kv_copier.cuh"
#include "family/sm90a/query_turner.cuh"
#include "family/sm90a/rotation_maker.cuh"

namespace lazyrope {

template <class Spec, class Memory>
LAZYROPE_DEVICE void prepare_queries(const AttendParams& params, Memory memory, int32 warp) {
  if constexpr (Memory::kMakesRotations) {
    if (warp >= Memory::kFirstMaker) return RotationMaker<Spec, Memory>(params, memory).run();
  }
  if constexpr (!Memory::kConsumersTurn) QueryTurner<Spec, Memory>(params, memory).run();
}

// `warp`: the thread's, as warp_uniform() gives it. `first`: BlockFinder's first_item().
template <class Spec, class Memory>
LAZYROPE_DEVICE void help(const TmaAttendParams& params, Memory memory, int32 warp,
                          const Chunk& first) {
  if (warp == 0)
    BlockFinder<Memory>(params.attend, memory, first).run();
  else if (warp == 1)
    KvCopier<Memory>(params, memory).run();
  else if (warp < 2 + Memory::kPreparingWarps)
    prepare_queries<Spec>(params.attend, memory, warp);
}

}  // namespace lazyrope
