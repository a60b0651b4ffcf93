// The warps of a CTA that bring and prepare what others compute on. Warp 0 finds where blocks lie,
// warp 1 copies keys and values, the next turn queries, and one may make what these turn them by;
// or they make what consumers turn theirs by. Those that turn widen 8-bit keys and values, too.
// The last of eight copies values, and warp 1 keys alone: on another scheduler. Where nothing turns
// some have nothing to do.
#pragma once

#include "family/sm90a/block_finder.cuh"
#include "family/sm90a/kv_copier.cuh"
#include "family/sm90a/query_turner.cuh"
#include "family/sm90a/rotation_maker.cuh"

namespace lazyrope {

template <class Spec, class Memory, class IsBelow>
LAZYROPE_DEVICE void prepare_queries(const AttendParams& params, Memory memory,
                                     const IsBelow& is_below) {
  if constexpr (Memory::kMakesRotations) {
    if (!is_below(Memory::kFirstMaker)) return RotationMaker<Spec, Memory>(params, memory).run();
  }
  if constexpr (!Memory::kConsumersTurn) QueryTurner<Spec, Memory>(params, memory).run();
}

// is_below(i): whether the warp's number is less, as the compiler knows that all lanes have it.
// `first`: BlockFinder's first_item().
template <class Spec, class Memory, class IsBelow>
LAZYROPE_DEVICE void help(const TmaAttendParams& params, Memory memory, const IsBelow& is_below,
                          const Chunk& first) {
  constexpr bool kTwoCopy = Memory::kCopiers == 2;
  if constexpr (kTwoCopy) {
    if (!is_below(Memory::kHelperWarps - 1))
      return KvCopier<Memory, Copied::kValues>(params, memory).run();
  }
  if (is_below(1))
    BlockFinder<Memory>(params.attend, memory, first).run();
  else if (is_below(2))
    KvCopier<Memory, kTwoCopy ? Copied::kKeys : Copied::kBoth>(params, memory).run();
  else if (is_below(2 + Memory::kPreparingWarps))
    prepare_queries<Spec>(params.attend, memory, is_below);
}

}  // namespace lazyrope
