// Family sm90a, few rows: attention of decode and speculative decoding, by wgmma and TMA (Hopper
// only).
//
// A work tile has kHeadRows packed query rows of each of kHeads KV heads, and a range of KV blocks
// of kKeys keys (tile_memory.cuh). The kernel computes out = softmax(rotated q x keys^T) x values
// for each head, or a partial result if the tile has several KV splits. Products have keys or value
// columns as their 64 rows and query rows as their columns (column_consumer.cuh).
//
// Reads: q [tokens, heads, head_dim], the pools of keys and values by tensor maps
// (abi/attend_tma.h), the step's work tiles, segments and positions (abi/attend.h), and the bias of
// keys if the spec has one (abi/key_bias.h).
// Writes: out, shaped like q, and lse [tokens, heads], or rows of partial results (abi/step.h).
//
// | warps                | role                                                                   |
// |----------------------|------------------------------------------------------------------------|
// | 0                    | scheduler: work tiles and block table (scheduler_warp.cuh)             |
// | 1                    | KV copier: keys and values by TMA (kv_copier.cuh)                      |
// | 2, 3                 | query rotators (query_rotator.cuh)                                     |
// | 4 to 3 + 4 * kWarpsM | kWarpsM warpgroups compute, each all rows of some KV heads             |
// |                      | (column_consumer.cuh)                                                  |
//
// All warps proceed to the CTA's next work tile independently, as far as the pipelines have room.
//
// Each warp makes one arrival at an mbarrier. "Consumers" are the warps of the warpgroups.
//
// | barrier         | who arrives (arrivals)  | who waits       | what it protects                |
// |-----------------|-------------------------|-----------------|---------------------------------|
// | work tile, full | warp 0 (1)              | all other warps | a work tile                     |
// | work tile,      | all other warps         | warp 0          | the work tile and its row       |
// | empty           | (4 * kWarpsM + 3)       |                 | positions, until they have been |
// |                 |                         |                 | read                            |
// | window, full    | warp 0 (1)              | all other warps | a window of the block table     |
// | window, empty   | all other warps         | warp 0          | the same, until it has been     |
// |                 | (4 * kWarpsM + 3)       |                 | read                            |
// | keys, full;     | warp 1 (1), and the     | consumers       | a block's keys with their       |
// | values, full    | bytes of the copies     |                 | biases, or its values           |
// | keys, empty;    | consumers (4 * kWarpsM) | warp 1          | the same, until products have   |
// | values, empty   |                         |                 | read them                       |
// | rotated, full   | warps 2 and 3 (2)       | consumers       | rotated queries                 |
// | rotated, empty  | consumers (4 * kWarpsM) | warps 2 and 3   | the same, until products have   |
// |                 |                         |                 | read them                       |
// | bar 0           | all threads             | the CTA         | the mbarriers (init())          |
// | bar 1           | warps 2 and 3           | the same        | original queries, row positions |
// | bar 2           | consumers               | the same        | cleared values; results         |
// |                 |                         |                 | (combine_scheduler.cuh); if     |
// |                 |                         |                 | kWarpsM is 1, also weights,     |
// |                 |                         |                 | maxima and sums                 |
// | bar 3 to        | one warpgroup           | the same        | weights, maxima and sums of the |
// | 2 + kWarpsM     |                         |                 | warpgroup, if kWarpsM is above  |
// |                 |                         |                 | 1                               |
#pragma once

#include "family/sm90a/column_consumer.cuh"
#include "family/sm90a/producer_warps.cuh"
#include "ops/pool_offset.cuh"

namespace lazyrope {

template <class Spec, class Shape>
class Sm90aDecode {
  using Product = typename Spec::Product;
  using Memory = TileMemory<Spec, Shape>;
  static_assert(Shape::kHeads % Shape::kWarpsM == 0 && Shape::kWarpsN == 4);

 public:
  using Params = typename Memory::Params;

  // All threads of the CTA call this. It computes the CTA's work tiles in sequence. `memory` is
  // aligned to 1024 bytes.
  LAZYROPE_DEVICE static void run(const Params& params, SharedPtr memory_start) {
    const Memory memory = {memory_start};
    const Chunk first = SchedulerWarp<Memory>::first_work_tile(params.attend);
    memory.init();
    // Votes select the role. From the warp's index the compiler would make a table of branches in
    // constant memory, whose first use by a CTA takes about 600 clocks. The prefill kernel is
    // slower with votes.
    const auto is_below = [](int32 i) { return warp_uniform(warp_index() < i); };
    if (is_below(Memory::kProducerWarps))
      return run_producer_warp<Spec>(params, memory, is_below, first);
    if (is_below(Memory::kProducerWarps + 1)) prefetch_first(params.attend.pool, memory);
    ColumnConsumer<Spec, Memory>(params.attend, memory).run();
  }

 private:
  // The first consumer warp calls this, because it has nothing to do yet. Each lane prefetches the
  // first line of one run of the CTA's first work tile, if the work tile contains the run's page
  // number. The addresses are then translated before the runs are copied.
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
