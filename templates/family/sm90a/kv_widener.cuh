// Widens the keys and values of a work tile's blocks from 8 bits, as in the pool, to the
// queries' 16 bits: wgmma cannot multiply 16-bit by 8-bit elements.
//
// Reads: stages that the copier has filled, 8-bit [kKeys, head_dim]; each run of 16 rows is stored
// in the upper half of its 16-bit space.
// Writes: the same stages, [kKeys, head_dim] of 16 bits (tile/widened_wgmma_product.cuh).
//
// Role: the query rotator warps. Each widens some runs of every tile. They consume the stored
// pipeline and commit the key and value pipelines. They do not acquire a stage, because the copier
// has acquired it.
#pragma once

#include "family/sm90a/tile_memory.cuh"

namespace lazyrope {

template <class Spec, class Memory>
class KvWidener {
  using Product = typename Spec::Product;
  using Team = typename Memory::Rotators;

 public:
  LAZYROPE_DEVICE explicit KvWidener(Memory memory)
      : memory_(memory),
        stored_(memory.at + Memory::kStoredBarriers),
        tiles_(memory.at + Memory::kKeyBarriers) {}

  // Widens the next keys, then the next values, which belong to the previous block. The copier
  // copies in the same order. One instance of the code, in a loop, widens both.
  LAZYROPE_DEVICE void widen(bool has_keys, bool has_values) {
#pragma unroll 1
    for (int32 ring = has_keys ? 0 : 1; ring < (has_values ? 2 : 1); ++ring) {
      widen_tile(ring == 0 ? key_stage_.index : Memory::kStages + value_stage_.index);
      if (ring == 0)
        key_stage_.advance();
      else
        value_stage_.advance();
    }
  }

 private:
  LAZYROPE_DEVICE void widen_tile(int32 stage) {
    stored_.wait(stage);
    widen_runs(memory_.keys(stage));
    tiles_.commit(stage);
  }
  // Each warp widens some of a tile's runs.
  LAZYROPE_DEVICE static void widen_runs(SharedPtr tile) {
    constexpr int32 kRuns = Memory::kRuns / Memory::kRotatorWarps;
    static_assert(kRuns * Memory::kRotatorWarps == Memory::kRuns);
    // The copier stores runs in this format.
    static_assert(Product::kRunRows == kRunSlots && Product::kStoredAt == Memory::kStoredAt);
    Product::template widen<kRuns>(tile + Team::warp() * kRuns * Product::kRunBytes);
    fence_proxy_async();
  }

  Memory memory_;
  PipelineConsumer stored_;
  PipelineProducer tiles_;
  PipelineStage<Memory::kStages> key_stage_;
  PipelineStage<Memory::kStages> value_stage_;
};

}  // namespace lazyrope
