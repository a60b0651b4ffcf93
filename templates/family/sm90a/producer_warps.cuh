// The warps of a CTA that bring and prepare what others compute on. Warp 0 finds where blocks lie,
// warp 1 copies keys and values, the next turn queries, and one may make what these turn them by;
// or they make what consumers turn theirs by. Those that turn widen 8-bit keys and values, too.
// The last of eight copies values, and warp 1 keys alone: on another scheduler. Where nothing turns
// some have nothing to do.
#pragma once

#include "family/sm90a/kv_copier.cuh"
#include "family/sm90a/query_rotator.cuh"
#include "family/sm90a/rotation_producer.cuh"
#include "family/sm90a/scheduler_warp.cuh"

namespace lazyrope {

template <class Spec, class Memory, class IsBelow>
LAZYROPE_DEVICE void run_query_warp(const AttendParams& params, Memory memory,
                                    const IsBelow& is_below) {
  if constexpr (Memory::kProducesRotations) {
    if (!is_below(Memory::kFirstRotationWarp))
      return RotationProducer<Spec, Memory>(params, memory).run();
  }
  if constexpr (!Memory::kConsumersRotate) QueryRotator<Spec, Memory>(params, memory).run();
}

// is_below(i): whether the warp's number is less, as the compiler knows that all lanes have it.
// `first`: SchedulerWarp's first_work_tile().
template <class Spec, class Memory, class IsBelow>
LAZYROPE_DEVICE void run_producer_warp(const TmaAttendParams& params, Memory memory,
                                       const IsBelow& is_below, const Chunk& first) {
  constexpr bool kHasTwoCopyWarps = Memory::kCopyWarps == 2;
  if constexpr (kHasTwoCopyWarps) {
    if (!is_below(Memory::kProducerWarps - 1))
      return KvCopier<Memory, Copied::kValues>(params, memory).run();
  }
  if (is_below(1))
    SchedulerWarp<Memory>(params.attend, memory, first).run();
  else if (is_below(2))
    KvCopier<Memory, kHasTwoCopyWarps ? Copied::kKeys : Copied::kBoth>(params, memory).run();
  else if (is_below(2 + Memory::kQueryWarps))
    run_query_warp<Spec>(params.attend, memory, is_below);
}

}  // namespace lazyrope
