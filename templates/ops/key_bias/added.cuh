// Adds the bias of keys to scores.
//
// Biased scores are logits. The functions return the factor that is left to logits in log2 units: 1
// if biases were multiplied by log2(e), or log2(e). The caller adds the bias before it masks
// scores: a slot outside the segment may have any bias, also NaN.
#pragma once

#include "isa/async_copy.cuh"
#include "isa/math.cuh"
#include "isa/sync.cuh"
#include "ops/key_bias.cuh"
#include "ops/softmax.cuh"

namespace lazyrope {

inline constexpr bool kHasKeyBias = true;

// Returns the chunk of a run's first slot. `Location` is RunLocation (pipeline/block_table.cuh).
template <class Location>
LAZYROPE_DEVICE uint32 bias_chunk(const KeyBias& bias, const Location& run, int32 kv_head) {
  return static_cast<uint32>(run.page) * bias.page_chunks +
         static_cast<uint32>(kv_head) * bias.head_chunks +
         static_cast<uint32>(run.slot) / kBiasChunkFloats;
}
LAZYROPE_DEVICE const float* bias_address(const KeyBias& bias, uint32 chunk) {
  return bias.data + static_cast<uint64>(chunk) * kBiasChunkFloats;
}

// Adds to a tile of scores, whose columns are keys, what bias(n) returns for the lane's two columns
// of column tile n, in log2 units.
template <class Scores, class Scale, class Bias>
LAZYROPE_DEVICE UniformScale add_to_columns(Scores& scores, const Scale& scale, const Bias& bias) {
  using Access = TileAccess<Scores>;
#pragma unroll
  for (int n = 0; n < Access::kColumnTiles; ++n) {
    const FloatPair pair = bias(n);
#pragma unroll
    for (int m = 0; m < Access::kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float& low = Access::at(scores, m, n, 2 * h);
        float& high = Access::at(scores, m, n, 2 * h + 1);
        low = low * scale.of(m, h) + pair.low;
        high = high * scale.of(m, h) + pair.high;
      }
  }
  return UniformScale{1.0f};
}
LAZYROPE_DEVICE FloatPair in_log2_units(const FloatPair& pair) {
  return {pair.low * kLog2e, pair.high * kLog2e};
}

// Returns the columns of a key's bias. An infinite or huge negative bias becomes a finite logit
// that is far below kNoMaximum, so its weight is 0 as well. Without that, infinity minus infinity
// would be NaN.
LAZYROPE_DEVICE Chunk bias_columns(float bias) {
  constexpr float kLeastLogit = -1e38f;
  const float logit = bias * kLog2e;
  const float half = 0.5f * (logit < kLeastLogit ? kLeastLogit : logit);  // NaN stays NaN
  const float first = cvt_f32_bf16x2(cvt_rn_bf16x2_f32(half, 0.0f)).low;
  const float second = cvt_f32_bf16x2(cvt_rn_bf16x2_f32(half - first, 0.0f)).low;
  return {cvt_rn_bf16x2_f32(first, second), cvt_rn_bf16x2_f32(half - first - second, 0.0f), 0, 0};
}

// A lane has the biases of four neighbouring keys.
template <int kKeys>
class KeyBiasColumns {
  static constexpr int32 kLaneKeys = kBiasChunkFloats;
  static constexpr int32 kLanes = kKeys / kLaneKeys;
  static_assert(kLanes <= kWarpThreads && kRunSlots % kLaneKeys == 0);

 public:
  // Loads the biases of a block. All keys of a run without a slot of the segment get some biases,
  // and their scores are masked.
  template <class Table>
  LAZYROPE_DEVICE void load(const KeyBias& bias, const Table& table, int32 block, int32 kv_head) {
    const int32 key = smaller(lane_index(), kLanes - 1) * kLaneKeys;
    const uint32 run = bias_chunk(bias, table.run(block, key / kRunSlots), kv_head);
    const float* from = bias_address(bias, run) + key % kRunSlots;
    of_keys_ = ld_global_nc(reinterpret_cast<const Chunk*>(from));
  }

  // Writes the columns of the loaded biases.
  LAZYROPE_DEVICE void store(SharedPtr columns) const {
    if (lane_index() < kLanes) {
#pragma unroll
      for (int32 i = 0; i < kLaneKeys; ++i)
        st_shared(columns + (lane_index() * kLaneKeys + i) * bias_column_bytes(),
                  bias_columns(bits_as_float(of_keys_.word[i])));
    }
  }

 private:
  Chunk of_keys_;
};

// A warp's ring of the biases of its blocks, for the TileRing of kTiles tiles
// (pipeline/kv_ring.cuh). The copies of a block's biases belong to the group of its keys. A warp
// that has waited for the keys thus has the biases, too. At most (kTiles + 1) / 2 of kTiles
// consecutive tiles are keys.
template <int kKeys, int kTiles>
class KeyBiasRing {
  static constexpr int32 kBlocks = (kTiles + 1) / 2;
  static constexpr int32 kBlockBytes = kKeys * kBiasBytes;
  static constexpr int32 kChunks = kKeys / kBiasChunkFloats;
  static constexpr int32 kRunChunks = kRunSlots / kBiasChunkFloats;

 public:
  static constexpr int kBytes = kBlocks * kBlockBytes;

  // Prepares for a work tile of a KV head. The addresses of the lane stay in registers: computed
  // again for each block, they would take more instructions than the biases.
  LAZYROPE_DEVICE void prepare(SharedPtr memory, const KeyBias& bias, int32 kv_head) {
    to_ = memory + lane_index() * 16;
    from_ = memory + RowLanes::first_column() * kBiasBytes;
    lane_chunk_ = static_cast<uint32>(kv_head) * bias.head_chunks +
                  static_cast<uint32>(lane_index() % kRunChunks);
  }

  template <class Table>
  LAZYROPE_DEVICE void issue(const KeyBias& bias, const Table& table, int32 block) const {
#pragma unroll
    for (int32 first = 0; first < kChunks; first += kWarpThreads) {
      const int32 chunk = first + lane_index();
      if (chunk >= kChunks) return;
      const uint32 run = bias_chunk(bias, table.run(block, chunk / kRunChunks), 0);
      cp_async_cg_16<false>(to_ + (offset(block) + first * 16),
                            bias_address(bias, run + lane_chunk_), 16);
    }
  }

  // Adds the biases of a block, for which the warp has waited. Scores become logits in natural
  // units, because that takes no multiplication of the biases.
  template <class Scores, class Scale>
  LAZYROPE_DEVICE UniformScale add(Scores& scores, const Scale& scale, int32 block) const {
    using Access = TileAccess<Scores>;
    const SharedPtr lane = from_ + offset(block);
    float natural[Access::kRowTiles][2];
#pragma unroll
    for (int m = 0; m < Access::kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) natural[m][h] = scale.of(m, h) * kLn2;
#pragma unroll
    for (int n = 0; n < Access::kColumnTiles; ++n) {
      const FloatPair pair = ld_shared<FloatPair>(lane + n * 8 * kBiasBytes);
#pragma unroll
      for (int m = 0; m < Access::kRowTiles; ++m)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          float& score = Access::at(scores, m, n, i);
          score = score * natural[m][i / 2] + (i % 2 == 0 ? pair.low : pair.high);
        }
    }
    return UniformScale{kLog2e};
  }

 private:
  LAZYROPE_DEVICE static int32 offset(int32 block) {
    return static_cast<int32>(static_cast<uint32>(block) % kBlocks) * kBlockBytes;
  }

  SharedPtr to_{};       // the lane's chunk of block 0
  SharedPtr from_{};     // the biases of the lane's first columns of block 0
  uint32 lane_chunk_{};  // the lane's chunk in a run of the KV head, in page 0
};

// The biases of a tile of kKeys keys, distributed over the lanes of a warp: shared memory has no
// room for them where a block of keys is large. Lane i has those of keys 2 i and 2 i + 1 of
// each 64. So the lane that has the pair of a column tile is the same for all lanes, but for their
// own column.
template <int kKeys>
class RowKeyBias {
  static constexpr int32 kPassKeys = 2 * kWarpThreads;
  static constexpr int32 kPasses = ceil_div(kKeys, kPassKeys);

 public:
  // Loads the biases of keys first_key and following of a block. All lanes of the warp take part.
  template <class Table>
  LAZYROPE_DEVICE void load(const KeyBias& bias, const Table& table, int32 block, int32 first_key,
                            int32 kv_head) {
#pragma unroll
    for (int32 pass = 0; pass < kPasses; ++pass) {
      const int32 key = smaller(pass * kPassKeys + 2 * lane_index(), kKeys - 2);
      const uint32 run = bias_chunk(bias, table.run(block, (first_key + key) / kRunSlots), kv_head);
      const float* from = bias_address(bias, run) + key % kRunSlots;
      pairs_[pass] = ld_global_nc(reinterpret_cast<const FloatPair*>(from));
    }
  }

  // Adds them to scores. All lanes of the warp take part.
  template <class Scores, class Scale>
  LAZYROPE_DEVICE UniformScale add(Scores& scores, const Scale& scale) const {
    return add_to_columns(scores, scale, lane_columns());
  }

 private:
  struct LaneColumns {
    FloatPair pairs[kPasses];  // log2 units

    // Returns the biases of the lane's columns of column tile n.
    LAZYROPE_DEVICE FloatPair operator()(int n) const {
      constexpr int kPassTiles = kPassKeys / 8;
      const int32 owner = n % kPassTiles * 4 + lane_index() % 4;
      return {shfl_sync_idx(pairs[n / kPassTiles].low, owner),
              shfl_sync_idx(pairs[n / kPassTiles].high, owner)};
    }
  };
  LAZYROPE_DEVICE LaneColumns lane_columns() const {
    LaneColumns columns;
#pragma unroll
    for (int pass = 0; pass < kPasses; ++pass) columns.pairs[pass] = in_log2_units(pairs_[pass]);
    return columns;
  }

  FloatPair pairs_[kPasses];
};

// The biases of a transposed tile, whose lanes have two keys of each of kHeads KV heads. `Lanes`
// says which (ColumnLanes, tile/wgmma_tile.cuh). kHeadRows rows are of one head.
template <class Lanes, int kKeys, int kHeads, int kHeadRows>
class ColumnKeyBias {
 public:
  // Loads the lane's biases from shared memory, where the biases of a head are kKeys floats.
  LAZYROPE_DEVICE void load(SharedPtr biases) {
#pragma unroll
    for (int head = 0; head < kHeads; ++head)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int32 key = head * kKeys + Lanes::first_column() + Lanes::column(i);
        value_[head][i] = ld_shared<float>(biases + key * kBiasBytes) * kLog2e;
      }
  }

  template <class Scores, class Scale>
  LAZYROPE_DEVICE UniformScale add(Scores& scores, const Scale& scale) const {
    using Access = TileAccess<Scores>;
#pragma unroll
    for (int m = 0; m < Access::kRowTiles; ++m)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float& score = Access::at(scores, m, 0, i);
        score = score * scale.of(m, i / 2) + value_[m * 8 / kHeadRows][i % 2];
      }
    return UniformScale{1.0f};
  }

 private:
  float value_[kHeads][2];
};

}  // namespace lazyrope
