// Family sm90a, many rows: attention of chunks of queries and of prefill, by wgmma and TMA (Hopper
// only).
//
// A work tile has up to 128 packed query rows of one KV head, and a range of KV blocks of kKeys
// keys (tile_memory.cuh). The kernel computes out = softmax(rotated q x keys^T) x values, or a
// partial result if the tile has several KV splits.
//
// Reads: q [tokens, heads, head_dim], the pools of keys and values by tensor maps
// (abi/attend_tma.h), the step's work tiles, segments and positions (abi/attend.h), and the bias of
// keys if the spec has one (abi/key_bias.h), which the consumers load themselves.
// Writes: out, shaped like q, and lse [tokens, heads], or rows of partial results (abi/step.h).
//
// The warp roles depend on the head dimension. Up to 128, helpers rotate the queries into two
// stages. Above 128 there is room for one stage only, so each warpgroup rotates its own queries
// (rotated_queries.cuh).
//
// | warps, head_dim up to 128 | above 128 | role                                                  |
// |---------------------------|-----------|-------------------------------------------------------|
// | 0                         | 0         | scheduler: work tiles and block table                 |
// |                           |           | (scheduler_warp.cuh)                                  |
// | 1, 7                      | 1         | KV copier: keys (1) and values (7), or both           |
// |                           |           | (kv_copier.cuh)                                       |
// | 2 to 5                    | none      | query rotators, which also widen 8-bit keys and       |
// |                           |           | values (query_rotator.cuh)                            |
// | 6                         | 2, 3      | rotation producers, idle without RoPE                 |
// |                           |           | (rotation_producer.cuh)                               |
// | 8 to 11, 12 to 15         | 4 to 7, 8 | two warpgroups compute, each 64 of the rows           |
// |                           | to 11     | (row_consumer.cuh)                                    |
//
// All warps proceed to the CTA's next work tile independently, as far as the pipelines have room.
//
// The table of barriers holds for head_dim up to 128 with RoPE and 16-bit pools. tile_memory.cuh
// has the general one.
//
// Each warp makes one arrival at an mbarrier. "Consumers" are the warps of the warpgroups.
//
// | barrier         | who arrives (arrivals)  | who waits           | what it protects          |
// |-----------------|-------------------------|---------------------|---------------------------|
// | work tile, full | warp 0 (1)              | all other warps     | a work tile               |
// | work tile,      | all other warps (15)    | warp 0              | the work tile and its row |
// | empty           |                         |                     | positions, until they     |
// |                 |                         |                     | have been read            |
// | window, full    | warp 0 (1)              | warps 1, 6, 7 and   | a window of the block     |
// |                 |                         | consumers           | table                     |
// | window, empty   | warps 1, 6, 7 and       | warp 0              | the same, until it has    |
// |                 | consumers (11)          |                     | been read                 |
// | keys, full      | warp 1 (1), and the     | consumers           | a block's keys; for a     |
// |                 | bytes of the copies     |                     | document's first block    |
// |                 |                         |                     | also the rotated queries  |
// | values, full    | warp 7 (1), and the     | consumers           | a block's values          |
// |                 | bytes of the copies     |                     |                           |
// | keys, empty;    | consumers (8)           | warp 1; warp 7      | the same, until products  |
// | values, empty   |                         |                     | have read them            |
// | rotated, full   | warps 2 to 5 (4)        | warp 1, before it   | rotated queries           |
// |                 |                         | arrives at "keys,   |                           |
// |                 |                         | full"               |                           |
// | rotated, empty  | consumers (8)           | warps 2 to 5        | the same, until products  |
// |                 |                         |                     | have read them            |
// | rotation, full  | warp 6 (1)              | warps 2 to 5        | cosines and sines for the |
// |                 |                         |                     | next document             |
// | rotation, empty | warps 2 to 5 (4)        | warp 6              | the same, until they have |
// |                 |                         |                     | been read                 |
// | query order     | warps 2 to 5 (4), once  | warps 1 and 7       | no data: the first        |
// |                 |                         |                     | queries are issued first  |
// | bar 0           | all threads             | the CTA             | the mbarriers (init())    |
// | bar 2           | consumers               | the same            | cleared values; results   |
// |                 |                         |                     | (combine_scheduler.cuh)   |
// | bar 5, bar 6    | consumers               | one warpgroup       | no data: the order of     |
// |                 |                         |                     | products                  |
// |                 |                         |                     | (pipeline/mma_order.cuh)  |
//
// Above 128 the consumers wait for the rotations themselves. Bar 3 and bar 4, one for each
// warpgroup, then protect the queries that a warpgroup loads and rotates. The saved mbarriers tell
// a warpgroup that its saved queries have been loaded again.
#pragma once

#include "family/sm90a/producer_warps.cuh"
#include "family/sm90a/row_consumer.cuh"

namespace lazyrope {

template <class Spec, class Shape>
class Sm90aPrefill {
  using Memory = TileMemory<Spec, Shape>;
  // The registers of each thread of a consumer and of a producer. A warpgroup waits forever if all
  // warps together ask for more registers than the launch has, kLaunchRegisters for each thread.
  static constexpr bool kHasRotators = !Memory::kConsumersRotate;
  // With products of 8 bits and one of these options, a consumer needs more than 192 registers.
  // Rotators need fewer than with a pool whose elements they widen.
  // This is a function, because each constant takes a word of the kernel's constant memory.
  static constexpr bool needs_registers() {
    return Memory::kFloat8 && (requires { typename Spec::Mask::HidesFirstKeys; } ||
                               Spec::kHasKeyBias || Spec::kMeasuresPageMass);
  }
  static constexpr int kConsumerRegisters = !kHasRotators ? 224 : needs_registers() ? 200 : 192;
  static constexpr int kProducerRegisters = !kHasRotators || needs_registers() ? 56 : 64;
  static constexpr int kWarps = Memory::kProducerWarps + Memory::kConsumerWarps;
  static constexpr int kLaunchRegisters = 65536 / (kWarps * kWarpThreads) / 8 * 8;
  static_assert(kConsumerRegisters * Memory::kConsumerWarps +
                    kProducerRegisters * Memory::kProducerWarps <=
                kLaunchRegisters * kWarps);
  static_assert(Shape::kWarpsM == 8 && Shape::kWarpsN == 1);
  static_assert(Spec::kMemories == 0, "attention states have prefill kernels of family sm80 alone");

 public:
  using Params = typename Memory::Params;

  // All threads of the CTA call this. It computes the CTA's work tiles in sequence. `memory` is
  // aligned to 1024 bytes.
  LAZYROPE_DEVICE static void run(const Params& params, SharedPtr memory_start) {
    const Memory memory = {memory_start};
    const Chunk first = SchedulerWarp<Memory>::first_work_tile(params.attend);
    // Many launches of some kernels have no work: those of a shared step's kernel, and those of the
    // two of which packed keys use one.
    if constexpr (Spec::kIsShared || LAZYROPE_ENDS_EARLY) {
      if (shfl_sync_idx(first.word[1], 0) == 0) return;
    }
    memory.init();
    const int32 warp = warp_uniform(warp_index());
    if (warp >= Memory::kProducerWarps) {
      setmaxnreg_inc<kConsumerRegisters>();
      RowConsumer<Spec, Memory>(params, memory).run();
    } else {
      setmaxnreg_dec<kProducerRegisters>();
      run_producer_warp<Spec>(params, memory, [warp](int32 i) { return warp < i; }, first);
    }
  }
};

}  // namespace lazyrope
