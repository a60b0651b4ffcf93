// Gives each producer warp of a CTA its role. Producer warps copy and prepare the data on which the
// consumer warpgroups compute.
//
//   warp 0: SchedulerWarp, work tiles and block table;
//   warp 1: KvCopier, keys and values, or keys only if the last producer warp copies values;
//   warps 2 and following: QueryRotator, which also widens 8-bit keys and values; after these one
//     RotationProducer if many rows have RoPE. If consumers rotate, these are RotationProducers;
//   last of eight warps: KvCopier, values only, so that its warp scheduler is another one.
//
// Warps without a role return. tile_memory.cuh has the numbers of warps and the barriers.
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

// is_below(i) returns true if the warp's index is less than i, in a form that the compiler knows to
// be warp-uniform. `first` is the result of SchedulerWarp::first_work_tile().
template <class Spec, class Memory, class IsBelow>
LAZYROPE_DEVICE void run_producer_warp(const typename Memory::Params& params, Memory memory,
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
