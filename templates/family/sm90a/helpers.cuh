// The warps of a CTA that bring and prepare what others compute on. Warp 0 finds where blocks lie,
// warp 1 copies keys and values, the next turn queries, or make what consumers turn theirs by.
#pragma once

#include "family/sm90a/block_finder.cuh"
#include "family/sm90a/kv_copier.cuh"
#include "family/sm90a/query_turner.cuh"
#include "family/sm90a/rotation_maker.cuh"

namespace lazyrope {

// `first`: BlockFinder's first_item().
template <class Spec, class Memory>
LAZYROPE_DEVICE void help(const TmaAttendParams& params, Memory memory, const Chunk& first) {
  if (warp_index() == 0)
    BlockFinder<Memory>(params.attend, memory, first).run();
  else if (warp_index() == 1)
    KvCopier<Memory>(params, memory).run();
  else if constexpr (!Memory::kConsumersTurn)
    QueryTurner<Spec, Memory>(params.attend, memory).run();
  else if constexpr (Memory::kTurningWarps > 0)
    RotationMaker<Spec, Memory>(params.attend, memory).run();
}

}  // namespace lazyrope
