// Family sm90a, many rows: chunks of queries and prefill, by wgmma and TMA (Hopper alone).
//
// A CTA's first warps (family/sm90a/producer_warps.cuh) bring and prepare what two warpgroups, each
// with 64 query rows of one KV head, compute on (family/sm90a/row_consumer.cuh): one finds where
// blocks lie, one or two copy their keys and values, straight from pages of any size, others turn
// the queries for the segment that comes next, unless the warpgroups do that themselves. All go on
// to the CTA's next work tile without waiting for each other.
#pragma once

#include "family/sm90a/producer_warps.cuh"
#include "family/sm90a/row_consumer.cuh"

namespace lazyrope {

template <class Spec, class Shape>
class Sm90aPrefill {
  using Memory = TileMemory<Spec, Shape>;
  // Of a thread. Who asks for more than the kernel was launched with waits for ever: those of all
  // threads together are what the launch has, a multiple of eight a thread.
  static constexpr bool kHasRotators = !Memory::kConsumersRotate;
  static constexpr int kConsumerRegisters = kHasRotators ? 192 : 224;
  static constexpr int kProducerRegisters = kHasRotators ? 64 : 56;
  static constexpr int kWarps = Memory::kProducerWarps + Memory::kConsumerWarps;
  static constexpr int kLaunchRegisters = 65536 / (kWarps * kWarpThreads) / 8 * 8;
  static_assert(kConsumerRegisters * Memory::kConsumerWarps +
                    kProducerRegisters * Memory::kProducerWarps <=
                kLaunchRegisters * kWarps);
  static_assert(Shape::kWarpsM == 8 && Shape::kWarpsN == 1);

 public:
  using Params = TmaAttendParams;
  static constexpr int kSharedBytes = Memory::kBytes;

  // All threads of the CTA: its work tiles, one after the other. `memory` is aligned to 1024 bytes.
  LAZYROPE_DEVICE static void run(const TmaAttendParams& params, SharedPtr memory_start) {
    const Memory memory = {memory_start};
    const Chunk first = SchedulerWarp<Memory>::first_work_tile(params.attend);
    memory.init();
    const int32 warp = warp_uniform(warp_index());
    if (warp >= Memory::kProducerWarps) {
      setmaxnreg_inc<kConsumerRegisters>();
      RowConsumer<Spec, Memory>(params.attend, memory).run();
    } else {
      setmaxnreg_dec<kProducerRegisters>();
      run_producer_warp<Spec>(params, memory, [warp](int32 i) { return warp < i; }, first);
    }
  }
};

}  // namespace lazyrope
