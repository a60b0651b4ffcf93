// Transposes the values of a work tile's blocks for products of 8 bits, whose operands must be
// K-major (tile/float8_product.cuh).
//
// Reads: stages of values that the copier has filled, 8-bit [kKeys, head_dim].
// Writes: the same stages, transposed: [head_dim, kKeys]. Values of slots outside the segment
// become zero: these slots may contain anything, and a weight of 0 would not hide a NaN.
//
// Role: the query rotator warps. Each has 32 keys of every block. They read a whole block before
// they write any of it, and synchronize by named barrier 1 (Team::sync()). They consume the stored
// pipeline and commit the value pipeline. They do not acquire a stage, because the copier has
// acquired it.
#pragma once

#include "family/sm90a/tile_memory.cuh"

namespace lazyrope {

template <class Spec, class Memory>
class ValueTransposer {
  using Product = typename Spec::Product;
  using Team = typename Memory::Rotators;
  static constexpr int32 kKeysPerWarp = 32;

 public:
  LAZYROPE_DEVICE explicit ValueTransposer(Memory memory)
      : memory_(memory),
        stored_(memory.at + Memory::kStoredBarriers),
        values_(memory.at + Memory::kValueBarriers) {}

  // Transposes the values of the next block.
  LAZYROPE_DEVICE void transpose(const BlockInfo& info) {
    static_assert(Memory::kKeys == Memory::kRotatorWarps * kKeysPerWarp);
    const int32 warp = warp_uniform(Team::warp());
    stored_.wait(Memory::kStages + stage_.index);
    Product::template transpose<Memory::kKeys>(memory_.values(stage_.index), warp,
                                               valid_bytes(info, warp), [] { Team::sync(); });
    fence_proxy_async();
    values_.commit(stage_.index);
    stage_.advance();
  }

 private:
  LAZYROPE_DEVICE static auto valid_bytes(const BlockInfo& info, int32 warp) {
    using ValidBytes = typename Product::ValidBytes;
    if (info.begin <= 0 && info.end >= Memory::kKeys) return ValidBytes::all();
    const int32 first = warp * kKeysPerWarp + lane_index() % 4 * 2;
    return ValidBytes::of(info.begin - first, info.end - first);
  }

  Memory memory_;
  PipelineConsumer stored_;
  PipelineProducer values_;
  PipelineStage<Memory::kStages> stage_;
};

}  // namespace lazyrope
