// Family sm90a, few rows: decode and speculative decoding, by wgmma and TMA (Hopper alone).
//
// A CTA's helpers (family/sm90a/producer_warps.cuh) bring keys, values and turned queries as they
// do for many rows, and as far ahead as there is room: beyond the present work tile too. One
// warpgroup computes, or one for each KV head, with rows as columns
// (family/sm90a/column_consumer.cuh).
#pragma once

#include "family/sm90a/column_consumer.cuh"
#include "family/sm90a/producer_warps.cuh"
#include "ops/pool_offset.cuh"

namespace lazyrope {

template <class Spec, class Shape>
class Sm90aDecode {
  using Product = typename Spec::Product;
  using Scratch = ColumnMemory<Shape::kWarpM, Product::kWeightBytes>;
  using Memory = TileMemory<Spec, Shape, Shape::kWarpsM * Scratch::kBytes>;
  static_assert(Shape::kHeads % Shape::kWarpsM == 0 && Shape::kWarpsN == 4);

 public:
  using Params = TmaAttendParams;
  static constexpr int kSharedBytes = Memory::kBytes;

  // All threads of the CTA: its work tiles, one after the other. `memory` is aligned to 1024 bytes.
  LAZYROPE_DEVICE static void run(const TmaAttendParams& params, SharedPtr memory_start) {
    const Memory memory = {memory_start};
    const Chunk first = SchedulerWarp<Memory>::first_work_tile(params.attend);
    memory.init();
    // By votes: of a number the compiler makes a table of branches, and the way to that is long
    // where little else is done. (With many rows votes have been slower: tests/gpu/NOTES.md.)
    const auto is_below = [](int32 i) { return warp_uniform(warp_index() < i); };
    if (is_below(Memory::kProducerWarps))
      return run_producer_warp<Spec>(params, memory, is_below, first);
    if (is_below(Memory::kProducerWarps + 1)) prefetch_first(params.attend.pool, memory);
    ColumnConsumer<Spec, Memory>(params.attend, memory).run();
  }

 private:
  // A warp that computes, which has nothing else to do yet: the first line of each run of the CTA's
  // first work tile whose page the work tile has brought, at most as many as there are lanes, so
  // that translations of their addresses are there as they are copied.
  LAZYROPE_DEVICE static void prefetch_first(const KvPool& pool, Memory memory) {
    PipelineConsumer(memory.at + Memory::kWorkTileBarriers).await_phase(0);
    const WorkTilePtr work_tile = memory.work_tile(0);
    const int32 num_blocks = work_tile.extent().num_blocks;
    if (num_blocks == 0) return;
    const WorkTileStart start = work_tile.start();
    const int32 run = lane_index();
    const bool exists = run < num_blocks * Memory::kRuns && run * kRunSlots < start.end;
    const RunLocation location = Memory::Table::start_run(work_tile, start, run);
    const uint64 at = pool_offset(pool, location.page, location.slot, work_tile.rows().kv_head);
    if (exists) prefetch_global_l2(static_cast<const uint8*>(pool.keys) + at);
    if (exists) prefetch_global_l2(static_cast<const uint8*>(pool.values) + at);
  }
};

}  // namespace lazyrope
