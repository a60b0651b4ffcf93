// Family sm90a, many rows: chunks of queries and prefill, by wgmma and TMA (Hopper alone).
//
// A CTA's first warpgroup brings and prepares what the others, each with 64 query rows of one KV
// head, compute on: one warp finds where blocks lie, one copies their keys and values, straight
// from pages of any size, the others turn the queries for the segment that comes next
// (family/sm90a/block_finder.cuh, kv_copier.cuh, query_turner.cuh, row_consumer.cuh). All go on to
// the CTA's next item without waiting for each other.
#pragma once

#include "family/sm90a/block_finder.cuh"
#include "family/sm90a/kv_copier.cuh"
#include "family/sm90a/query_turner.cuh"
#include "family/sm90a/row_consumer.cuh"

namespace lazyrope {

template <class Spec, class Shape>
class AttendTile {
  using Memory = TileMemory<Spec, Shape>;
  // Of a thread; those of all threads together are what an SM has.
  static constexpr int kHelperRegisters = 64;
  static constexpr int kConsumerRegisters = 192;
  static_assert(Shape::kRowWarps == 8 && kHelperWarps == 8);

 public:
  using Params = TmaAttendParams;
  static constexpr int kSharedBytes = Memory::kBytes;

  // All threads of the CTA: its items, one after the other. `memory` is aligned to 1024 bytes.
  LAZYROPE_DEVICE static void run(const TmaAttendParams& params, SharedPtr memory_start) {
    const Memory memory = {memory_start};
    memory.init();
    if (warp_index() >= kHelperWarps) {
      setmaxnreg_inc<kConsumerRegisters>();
      RowConsumer<Spec, Memory>(params.attend, memory).run();
    } else {
      setmaxnreg_dec<kHelperRegisters>();
      if (warp_index() == 0)
        BlockFinder<Memory>(params.attend, memory).run();
      else if (warp_index() == 1)
        KvCopier<Memory>(params, memory).run();
      else
        QueryTurner<Spec, Memory>(params.attend, memory).run();
    }
  }
};

}  // namespace lazyrope
