// Shared memory of a CTA of family sm90a, and the barriers through which its warps pass data.
//
// Warp roles, in order of the warp index. kProducerWarps warps copy and prepare data:
//   warp 0: the scheduler (scheduler_warp.cuh);
//   warp 1, and the last producer warp if kCopyWarps is 2: KV copiers (kv_copier.cuh);
//   kRotatorWarps warps from 2 on: query rotators (query_rotator.cuh), or rotation producers if
//     consumers rotate the queries (kConsumersRotate);
//   the next warp, if kProducesRotations and helpers rotate: the rotation producer.
// kConsumerWarps warps compute: row_consumer.cuh or column_consumer.cuh.
//
// The table lists the mbarriers that init() makes. A pipeline has a full and an empty mbarrier for
// each stage. Counts are arrivals: one by each warp, unless bytes are named. "All users" are the
// consumers, the query warps (kQueryWarps) and the copiers.
//
// | barrier             | who arrives, how many   | who waits          | what it protects         |
// |---------------------|-------------------------|--------------------|--------------------------|
// | work tile, full     | scheduler, 1            | all users          | a work tile              |
// | work tile, empty    | all users, 1 a warp     | scheduler          | the same, and row        |
// |                     |                         |                    | positions, until all     |
// |                     |                         |                    | have finished with the   |
// |                     |                         |                    | work tile                |
// | window, full        | scheduler, 1            | all users that     | a window of the block    |
// |                     |                         | visit blocks       | table                    |
// | window, empty       | the same users, 1 a     | scheduler          | the same, until it has   |
// |                     | warp; rotators do not   |                    | been read                |
// |                     | visit blocks if         |                    |                          |
// |                     | kSignalsRotationEnd     |                    |                          |
// | keys, full; values, | copier, 1 and the bytes | consumers          | a block's keys or        |
// | full                | of the copies; if       |                    | values; with few rows,   |
// |                     | kWidens the rotators,   |                    | or if products add them, |
// |                     | kRotatorWarps, and so   |                    | also the keys' biases    |
// |                     | for values if kFloat8   |                    |                          |
// | keys, empty;        | consumers,              | copiers            | the same, until products |
// | values, empty       | kConsumerWarps          |                    | have read it             |
// | stored, full (if    | copier, 1 and the bytes | rotators           | 8-bit keys or values; if |
// | kWidens or kFloat8) | of the copies           |                    | kFloat8 values alone     |
// | stored, empty (if   | none                    | none               | unused: the empty keys   |
// | kWidens or kFloat8) |                         |                    | or values barrier serves |
// | rotated, full       | rotators, kRotatorWarps | consumers; if      | rotated queries          |
// | (unless             |                         | kKeysSignalQueries |                          |
// | kConsumersRotate)   |                         | the keys copier,   |                          |
// |                     |                         | or with kWidens    |                          |
// |                     |                         | none               |                          |
// | rotated, empty      | consumers,              | rotators           | the same, until products |
// |                     | kConsumerWarps          |                    | have read it             |
// | rotation, full (if  | rotation producers, 1 a | consumers or       | cosines and sines of the |
// | kProducesRotations) | warp                    | rotators           | rotation to a document   |
// | rotation, empty     | consumers,              | rotation producers | the same, until it has   |
// |                     | kConsumerWarps, or      |                    | been read                |
// |                     | rotators, kRotatorWarps |                    |                          |
// | saved, full (if     | the 4 warps of a        | the same warpgroup | its saved queries,       |
// | consumers rotate    | warpgroup, and the      |                    | loaded again             |
// | with RoPE)          | bytes of the copies     |                    |                          |
// | saved, empty        | none                    | none               | unused: the warpgroup    |
// |                     |                         |                    | itself refills its stage |
// | query order (if     | rotators,               | copiers            | no data: the first       |
// | kQueriesIssueFirst) | kRotatorWarps, once     |                    | queries are issued       |
// |                     |                         |                    | before keys and values   |
//
// Named barriers: 0 all threads, in init(); 1 the rotators; 2 all consumers; 3 and following one
// consumer warpgroup each; kMmaOrderBarrier and the next: pipeline/mma_order.cuh.
#pragma once

#include "abi/shared_layout.h"
#include "isa/bulk_copy.cuh"
#include "ops/combine_scheduler.cuh"
#include "ops/key_bias.cuh"
#include "ops/pool_scales.cuh"
#include "ops/rotate.cuh"
#include "ops/temperature.cuh"
#include "pipeline/block_table.cuh"
#include "pipeline/issue_order.cuh"
#include "pipeline/mbarrier_pipeline.cuh"
#include "tile/wgmma_tile.cuh"

namespace lazyrope {

// Tells whether rotated queries include the softmax scale (TileMemory::kScalesQueries).
template <class Spec, class Shape>
constexpr bool scales_queries() {
  return Shape::kWarpsN == 1 && !Spec::Product::kFloat8 &&
         2 * Spec::Pairing::kUnits * Spec::Pairing::kPairs == Spec::kHeadDim &&
         Spec::Element::kExponentBias == 127;
}

// Returns what the layout of shared memory depends on. Products add the biases of keys only to
// scores that are logits already. codegen/kernel_config.cpp has the same conditions.
template <class Spec, class Shape>
constexpr Sm90aShape sm90a_shape() {
  const bool is_prefill = Shape::kWarpsN == 1;
  return with_fitting_biases({.head_dim = Spec::kHeadDim,
                              .block_m = Shape::kWarpsM * Shape::kWarpM,
                              .block_n = Shape::kWarpsN * Shape::kWarpN,
                              .stages = Shape::kStages,
                              .heads = Shape::kHeads,
                              .warpgroups = is_prefill ? Shape::kWarpsM / 4 : Shape::kWarpsM,
                              .is_prefill = is_prefill,
                              .widens = Spec::Product::kWidens,
                              .key_bias = Spec::kHasKeyBias,
                              .multiplies_bias = Spec::kHasKeyBias &&
                                                 scales_queries<Spec, Shape>() &&
                                                 Spec::kSoftcap == 0.0f && !Spec::Product::kWidens,
                              .states = Spec::kMemories > 0,
                              .page_mass = Spec::kMeasuresPageMass,
                              .float8 = Spec::Product::kFloat8});
}

template <class Spec, class Shape>
struct TileMemory {
  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int kRows = Shape::kWarpsM * Shape::kWarpM;
  // True in the prefill kernel: its warps divide the rows, and its work tiles may be in a queue.
  static constexpr bool kIsPrefill = Shape::kWarpsN == 1;
  static constexpr int kHeads = Shape::kHeads;  // KV heads of a work tile, side by side in a row
  // Warpgroups that divide the heads among them.
  static constexpr int kGroups = kIsPrefill ? 1 : Shape::kWarpsM;
  static constexpr int kHeadRows = kRows / kHeads;
  static constexpr int kKeys = Shape::kWarpsN * Shape::kWarpN;  // keys of a block
  static constexpr int kStages = Shape::kStages;                // stages of keys, and of values
  static constexpr bool kConsumersRotate = consumers_rotate(kIsPrefill, kHeadDim);
  static constexpr int kRotatedStages = rotated_stages(kIsPrefill, kHeadDim, kRows);
  static constexpr int kNumWorkTiles = kWorkTileStages;
  static constexpr int kProducerWarps = producer_warps(kIsPrefill, kHeadDim);
  static constexpr bool kHasRotation = Spec::Pairing::kUnits > 0;
  // There is at most one rotator for each of an SM's four warp schedulers. A second one would delay
  // the consumers of that scheduler, for which the others wait.
  static constexpr int kRotatorWarps =
      kConsumersRotate && !kHasRotation ? 0 : smaller(kProducerWarps - 2, 4);
  // One copier for both keys and values, or one for each if there are enough warps.
  static constexpr int kCopyWarps = copy_warps(kIsPrefill, kHeadDim);
  // If true, a full keys barrier also means that the rotated queries of the keys' document are
  // ready. Consumers then wait once, not twice.
  static constexpr bool kKeysSignalQueries = kCopyWarps == 2;
  // Helpers compute the rotations by which many rows are rotated together, for consumers or for
  // rotators.
  static constexpr int kRotationStages = rotation_stages(kIsPrefill, kHeadDim);
  static constexpr bool kProducesRotations = kRotationStages > 0 && kHasRotation;
  static constexpr int kFirstRotationWarp = kConsumersRotate ? 2 : 2 + kRotatorWarps;
  static constexpr int kQueryWarps =
      kRotatorWarps + (kProducesRotations && !kConsumersRotate ? 1 : 0);
  // The index of a work tile's first document for which a rotation is produced. Consumers may have
  // to rotate saved queries back to document 0: by a zero angle.
  static constexpr int kFirstRotation = kConsumersRotate ? 0 : 1;
  // With few rows one work tile has all rows of a KV head, so its keys and values are read only
  // once.
  static constexpr bool kReadsOnce = !kIsPrefill;
  // If true, octets of a block without a slot of its segment are not copied: with few rows memory
  // bandwidth is the limit.
  static constexpr bool kSkipsOctets = kReadsOnce;
  static constexpr int kConsumerWarps = Shape::kWarpsM * Shape::kWarpsN;
  using Params = typename SelectParams<TmaAttendParams, Spec::kHasKeyBias>::Type;
  static constexpr bool kHasKeyBias = Spec::kHasKeyBias;
  static constexpr bool kRotatesAllColumns =
      2 * Spec::Pairing::kUnits * Spec::Pairing::kPairs == kHeadDim;
  // If true, products are of 8 bits (tile/float8_product.cuh). Query rotators then round the
  // rotated queries, and transpose the values in the stage to which they were copied.
  static constexpr bool kFloat8 = Spec::Product::kFloat8;
  // If true, rotated queries include the softmax scale and the temperature. Their elements must
  // have the exponent range of fp32. Scores are then logits in log2 units. If no maximum is
  // subtracted, the weight of score s is 2^s (ops/softmax.cuh). Every column must be rotated: the
  // scale is then rounded together with the rotation, and it would round a column without rotation
  // once more.
  static constexpr bool kScalesQueries = scales_queries<Spec, Shape>();
  // If true, score products add the biases (ops/key_bias.cuh).
  enum : bool { kMultipliesBiases = sm90a_shape<Spec, Shape>().multiplies_bias };
  // Tells whether products add up the weights of each run for page masses. With scores that are no
  // logits, pools of 8 bits, biases that consumers add, and masks that hide first keys, registers
  // would spill.
  enum : bool {
    kAddsUpRuns = Spec::kMeasuresPageMass && kIsPrefill && kScalesQueries &&
    !Spec::Product::kWidens && kHasKeyBias == kMultipliesBiases &&
    !requires { typename Spec::Mask::HidesFirstKeys; }
  };
  // The bytes of the biases of a stage's keys. With many rows, consumers load biases themselves
  // unless products add them.
  static constexpr int kBiasBytesOfStage = kHasKeyBias && !kIsPrefill ? kHeads * kKeys * kBiasBytes
                                           : kMultipliesBiases        ? kKeys * bias_column_bytes()
                                                                      : 0;
  // Returns the scale of queries, which depends on their position.
  LAZYROPE_DEVICE static auto query_scale(const AttendParams& params, float key_scale) {
    if constexpr (kScalesQueries)
      return SoftmaxScale<Spec>{params.scale_log2 * key_scale};
    else
      return NoScale{};
  }
  // Returns the scale of a work tile's stored keys.
  LAZYROPE_DEVICE static float key_scale_of(const AttendParams& params, WorkTilePtr work_tile) {
    if constexpr (Spec::Product::kScaled)
      return key_scale(params.pool, work_tile.rows().kv_head);
    else
      return 1.0f;
  }

  // The teams of warps, with their named barriers. RotationWarps do not synchronize.
  using Rotators = WarpTeam<2, kRotatorWarps, 1>;
  using RotationWarps = WarpTeam<kFirstRotationWarp, kConsumersRotate ? kRotatorWarps : 1, 1>;
  using Consumers = WarpTeam<kProducerWarps, kConsumerWarps, 2>;
  static constexpr int kGroupWarps = kWarpgroupThreads / kWarpThreads;
  using ConsumerGroups = WarpTeams<kProducerWarps, kGroupWarps, 3>;
  static constexpr int kMmaOrderBarrier = 5;  // and the next number
  // True if the queries of a CTA's first work tile are issued before the keys and values that fill
  // the rings.
  static constexpr bool kQueriesIssueFirst = kCopyWarps == 2;

  // A row of 8-bit elements is one of half as many 16-bit elements.
  static constexpr int kTileColumns = kFloat8 ? kHeadDim / 2 : kHeadDim;
  using Keys = KeyTile<kHeads * kTileColumns, kKeys>;
  using Values = ValueTile<kHeads * kTileColumns, kKeys>;
  using QueryTile = QueryWgmmaTile<kTileColumns>;
  using Original = SharedTile<kHeadDim>;
  static constexpr int kMemories = Spec::kMemories;
  static constexpr bool kHasStates = kMemories > 0;
  static constexpr int kWindows = table_windows(kIsPrefill, kHeadDim);
  using Table =
      BlockTable<typename Spec::Mask, kKeys, kWindows, Spec::kMeasuresPageMass, kHasStates>;

  // Blocks of keys and of values have the same size, unless rows are padded.
  static constexpr int kBlockBytes = Keys::bytes(kKeys);
  static constexpr bool pads_rows() { return is_padded(kHeads * kTileColumns); }
  static constexpr int value_block_bytes() { return Values::bytes(kKeys); }
  static_assert(pads_rows() || value_block_bytes() == kBlockBytes);
  // Query rotators widen 8-bit keys and values in place, in the stage to which they were copied
  // (tile/widened_wgmma_product.cuh).
  static constexpr bool kWidens = Spec::Product::kWidens;
  // If true, rotators do not visit blocks. They rotate for a work tile's first document, and then
  // once for each rotation that is produced. If a work tile has several documents, a stage without
  // a rotation follows the last rotation.
  static constexpr bool kSignalsRotationEnd =
      kIsPrefill && !kConsumersRotate && !kWidens && !kFloat8;
  static constexpr int kStoredBytes = kWidens ? kBlockBytes / 2 : kBlockBytes;
  static constexpr int kRuns = kKeys / kRunSlots;
  // The offset of the stored bytes in the memory of a run.
  static constexpr int kStoredAt = (kBlockBytes - kStoredBytes) / kRuns;
  static constexpr int kRotatedBytes = QueryTile::bytes(kRows);

  static constexpr Sm90aLayout kLayout = layout_of(sm90a_shape<Spec, Shape>());
  static_assert(kLayout.key_block_bytes == kBlockBytes);
  static_assert(kLayout.value_block_bytes == value_block_bytes());
  static_assert(kLayout.table_bytes == Table::kBytes);
  static_assert(kWorkTileStages * 4 <= kSharedFlagBytes, "room for the first blocks");
  static constexpr int kOnesBytes = kFloat8 ? 0 : ones_bytes(kIsPrefill, kHeadDim);
  static constexpr int kKeyBarriers = kLayout.key_barriers;
  static constexpr int kValueBarriers = kLayout.value_barriers;
  static constexpr int kStoredBarriers = kLayout.stored_barriers;
  static constexpr int kRotatedBarriers = kLayout.rotated_barriers;
  static constexpr int kRotationBarriers = kLayout.rotation_barriers;
  static constexpr int kSavedBarriers = kLayout.saved_barriers;
  static constexpr int kWorkTileBarriers = kLayout.work_tile_barriers;
  static constexpr int kWindowBarriers = kLayout.window_barriers;
  static constexpr int kFlags = kLayout.flags;
  static constexpr int kBytes = kLayout.bytes;

  SharedPtr at;

  LAZYROPE_DEVICE SharedPtr keys(int32 stage) const { return at + (stage * kBlockBytes); }
  LAZYROPE_DEVICE SharedPtr values(int32 stage) const {
    return at + (kLayout.value_ring + stage * value_block_bytes());
  }
  LAZYROPE_DEVICE SharedPtr key_biases(int32 stage) const {
    return at + (kLayout.key_biases + stage * kBiasBytesOfStage);
  }
  LAZYROPE_DEVICE SharedPtr rotated(int32 stage) const {
    return at + (kLayout.rotated_queries + stage * kRotatedBytes);
  }
  LAZYROPE_DEVICE SharedPtr original() const { return at + kLayout.original; }
  LAZYROPE_DEVICE SharedPtr ones() const { return at + kLayout.ones; }
  LAZYROPE_DEVICE SharedPtr rotation(int32 stage) const {
    return at + (kLayout.rotations + stage * rotation_bytes(kHeadDim));
  }
  LAZYROPE_DEVICE SharedPtr rotation_exists(int32 stage) const {
    return rotation(stage) + rotation_exists_offset(kHeadDim);
  }
  LAZYROPE_DEVICE SharedPtr positions(int32 stage) const {
    return at + (kLayout.positions + stage * kRows * 4);
  }
  // Returns the scales of the 8-bit queries of the work tile in `stage`, a byte for each row.
  LAZYROPE_DEVICE SharedPtr query_scales(int32 stage) const {
    return at + (kLayout.query_scales + stage * kRows);
  }
  LAZYROPE_DEVICE SharedPtr totals() const { return at + kLayout.totals; }
  LAZYROPE_DEVICE IssueOrder query_order() const { return IssueOrder(at + kLayout.query_order); }
  LAZYROPE_DEVICE SharedPtr consumer_scratch() const { return at + kLayout.consumer_scratch; }
  LAZYROPE_DEVICE SharedPtr entries() const { return at + kLayout.entries; }
  LAZYROPE_DEVICE WorkTilePtr work_tile(int32 stage) const {
    return WorkTilePtr(at + (kLayout.work_tiles + stage * static_cast<int32>(sizeof(WorkTile))));
  }
  LAZYROPE_DEVICE SharedPtr first_block(int32 stage) const {
    return at + (kLayout.first_blocks + stage * 4);
  }
  // These return wgmma descriptors: of a stage's keys, and of the rotated queries that begin
  // `bytes` after the stage's first. The descriptor of stage 0 plus an offset takes fewer
  // instructions than a descriptor that is made for the stage.
  LAZYROPE_DEVICE SharedDescriptor key_columns(int32 stage) const {
    return Keys::columns(keys(0)) + stage * kBlockBytes;
  }
  LAZYROPE_DEVICE SharedDescriptor rotated_columns(int32 stage, int32 bytes) const {
    return QueryTile::columns(rotated(0) + bytes) + stage * kRotatedBytes;
  }

  // These are the operands of the product that adds biases: the columns of a stage's keys, and the
  // ones of all queries.
  LAZYROPE_DEVICE SharedDescriptor bias_columns(int32 stage) const {
    return shared_descriptor(key_biases(0), 0, 8 * bias_column_bytes(), Swizzle::kNone) +
           stage * kBiasBytesOfStage;
  }
  LAZYROPE_DEVICE SharedDescriptor bias_ones() const {
    return shared_descriptor(at + kLayout.bias_ones, 0, 0, Swizzle::kNone);
  }

  // Returns the operand by which the columns of A are added up in column `run` of a product. It has
  // eight columns of 16 rows. Column `run` is ones and all others are zeros. Both chunks of a
  // column are the same.
  LAZYROPE_DEVICE SharedDescriptor run_selector(int run) const {
    return shared_descriptor(at + (kLayout.run_selector + (kRuns - 1) * 16), 0, 0, Swizzle::kNone) +
           -run * 16;
  }

  // Only the scheduler, which fills the table, needs `first_block`.
  LAZYROPE_DEVICE Table table(const StepView& step, WorkTilePtr work_tile,
                              int32 first_block = 0) const {
    return Table(at + kLayout.table, {0, 1, 1, 0}, step, work_tile, first_block);
  }
  // Returns the stage of the window that contains a block.
  LAZYROPE_DEVICE static int32 window_of(int32 block) {
    return static_cast<int32>(static_cast<uint32>(block) / Table::kWindow % kWindows);
  }

  // All threads of the CTA call this first. Several warps make the barriers at the same time,
  // because making one is slow.
  LAZYROPE_DEVICE void init() const {
    constexpr uint32 kNumConsumers = kConsumerWarps;
    constexpr uint32 kNumAllConsumers = kNumConsumers + kQueryWarps + kCopyWarps;
    constexpr uint32 kNumWindowConsumers =
        kNumAllConsumers - (kSignalsRotationEnd ? kRotatorWarps : 0);
    constexpr uint32 kNumKeyProducers = kWidens ? kRotatorWarps : 1;
    constexpr uint32 kNumValueProducers = kWidens || kFloat8 ? kRotatorWarps : 1;
    if constexpr (kOnesBytes > 0) fill_ones(ones(), kOnesBytes);
    if constexpr (kMultipliesBiases) fill_ones(at + kLayout.bias_ones, bias_ones_bytes());
    if constexpr (kAddsUpRuns) fill_run_selector();
    if constexpr (QueryTile::kChunks > Original::kFilledChunks) clear_query_padding();
    const int32 warp = lane_index() == 0 ? warp_index() : -1;
    if (warp == 0) Pipeline<kNumWorkTiles>::init(at + kWorkTileBarriers, 1, kNumAllConsumers);
    if (warp == 1) Pipeline<kWindows>::init(at + kWindowBarriers, 1, kNumWindowConsumers);
    if (warp == 2 && !kConsumersRotate)
      Pipeline<kRotatedStages>::init(at + kRotatedBarriers, kRotatorWarps, kNumConsumers);
    if (warp == 3) Pipeline<kStages>::init(at + kKeyBarriers, kNumKeyProducers, kNumConsumers);
    if (warp == 4) Pipeline<kStages>::init(at + kValueBarriers, kNumValueProducers, kNumConsumers);
    if (warp == 5 && kProducesRotations)
      Pipeline<kRotationStages>::init(at + kRotationBarriers, RotationWarps::size() / kWarpThreads,
                                      kConsumersRotate ? kNumConsumers : kRotatorWarps);
    // Each warpgroup has one stage, which it fills and reads itself. Nothing waits for "empty".
    if (warp == 6 && kConsumersRotate && kHasRotation)
      Pipeline<kConsumerWarps / kGroupWarps>::init(at + kSavedBarriers, kGroupWarps, kGroupWarps);
    if (warp == 6 && kQueriesIssueFirst)
      IssueOrder::init_barrier(at + kLayout.query_order, kRotatorWarps);
    // Nothing waits for "empty": the consumers' release of the widened or transposed tile empties
    // the stage.
    if (warp == 7 && (kWidens || kFloat8)) Pipeline<2 * kStages>::init(at + kStoredBarriers, 1, 1);
    bar_sync();
  }

 private:
  // Clears the columns of the rotated queries that q does not have. Nothing writes them afterwards.
  LAZYROPE_DEVICE void clear_query_padding() const {
    static_assert(QueryTile::kChunks == Original::kFilledChunks + 1);
    for (int32 row = thread_index(); row < kRotatedStages * kRows; row += block_threads())
      st_shared(QueryTile::chunk(rotated(0), row, Original::kFilledChunks), Chunk{});
    fence_proxy_async();
  }
  // Chunk kRuns - 1 is ones and all others are zeros. So ones are row r of the eight that begin at
  // chunk kRuns - 1 - r.
  LAZYROPE_DEVICE void fill_run_selector() const {
    const uint32 one = Spec::Element::pack(1.0f, 1.0f);
    for (int32 i = thread_index(); i < run_selector_bytes(kRuns) / 16; i += block_threads())
      st_shared(at + (kLayout.run_selector + i * 16),
                i == kRuns - 1 ? Chunk{one, one, one, one} : Chunk{});
    fence_proxy_async();
  }
  LAZYROPE_DEVICE static void fill_ones(SharedPtr to, int32 bytes) {
    const uint32 one = Spec::Element::pack(1.0f, 1.0f);
    for (int32 i = thread_index(); i < bytes / 16; i += block_threads())
      st_shared(to + i * 16, Chunk{one, one, one, one});
    fence_proxy_async();
  }
};

// Returns true if all blocks of a work tile belong to one document.
template <class Memory>
LAZYROPE_DEVICE bool has_one_document(WorkTilePtr work_tile) {
  return work_tile.extent().num_blocks <=
         count_blocks<Memory::kKeys, Memory::kHasStates>(work_tile.start());
}

// One warp calls use(work_tile, stage) for each work tile of its CTA, in the order in which the
// scheduler publishes them.
template <class Memory, class Use>
LAZYROPE_DEVICE void for_each_work_tile(Memory memory, const Use& use) {
  PipelineConsumer work_tiles(memory.at + Memory::kWorkTileBarriers);
  PipelineStage<Memory::kNumWorkTiles> stage;
  bool has_next = true;
  while (has_next) {
    work_tiles.wait(stage.index);
    const WorkTilePtr work_tile = memory.work_tile(stage.index);
    if (work_tile.extent().num_rows == 0) return;
    use(work_tile, stage.index);
    has_next = !work_tile.is_last();  // loaded here, because holding it would cost a register
    work_tiles.release(stage.index);
    stage.advance();
  }
}

}  // namespace lazyrope
