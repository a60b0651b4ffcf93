// How warps widen the keys and values of a work tile's blocks, which copies have brought as they
// are stored, in 8 bits, to those that products take.
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

  // The next keys, and then the next values, which are those of the block before: in the order in
  // which they are brought. By one copy of the code.
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
  // Each warp some of a tile's runs.
  LAZYROPE_DEVICE static void widen_runs(SharedPtr tile) {
    constexpr int32 kRuns = Memory::kRuns / Memory::kRotatorWarps;
    static_assert(kRuns * Memory::kRotatorWarps == Memory::kRuns);
    // As they are copied.
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
