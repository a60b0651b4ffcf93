// Shared memory of a CTA of family sm90a, and how what lies there passes between its warps.
#pragma once

#include "isa/bulk_copy.cuh"
#include "ops/combine_scheduler.cuh"
#include "ops/pool_scales.cuh"
#include "pipeline/block_table.cuh"
#include "pipeline/issue_order.cuh"
#include "pipeline/mbarrier_pipeline.cuh"
#include "tile/wgmma_tile.cuh"

namespace lazyrope {

// kConsumerScratchBytes: what consumers alone use.
template <class Spec, class Shape, int kConsumerScratchBytes = 0>
struct TileMemory {
  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int kRows = Shape::kWarpsM * Shape::kWarpM;
  // Whether warps divide them: chunks and prefill, whose work tiles may come from a queue.
  static constexpr bool kHasManyRows = Shape::kWarpsN == 1;
  static constexpr int kHeads = Shape::kHeads;  // side by side, a panel or several each
  static constexpr int kGroups = kHasManyRows ? 1 : Shape::kWarpsM;  // that divide them
  static constexpr int kHeadRows = kRows / kHeads;
  static constexpr int kKeys = Shape::kWarpsN * Shape::kWarpN;  // of a block
  static constexpr int kStages = Shape::kStages;                // of keys, and of values
  static constexpr bool kConsumersRotate = consumers_rotate(kHasManyRows, kHeadDim);
  static constexpr int kRotatedStages = rotated_stages(kHasManyRows, kHeadDim, kRows);
  static constexpr int kNumWorkTiles = kWorkTileStages;
  static constexpr int kProducerWarps = producer_warps(kHasManyRows, kHeadDim);
  static constexpr bool kHasRotation = Spec::Pairing::kUnits > 0;
  // At most one for each of an SM's schedulers: a second would hold up what is computed there, for
  // which the others wait.
  static constexpr int kRotatorWarps =
      kConsumersRotate && !kHasRotation ? 0 : smaller(kProducerWarps - 2, 4);
  // Of keys and of values, where a warp is left for each.
  static constexpr int kCopyWarps = copy_warps(kHasManyRows, kHeadDim);
  // Whether keys tell that the queries of their document are there, too: those who compute wait
  // once then, not twice.
  static constexpr bool kKeysSignalQueries = kCopyWarps == 2;
  // Helpers find by what many rows are turned: those of the consumers, or one for turning warps.
  static constexpr int kRotationStages = rotation_stages(kHasManyRows, kHeadDim);
  static constexpr bool kProducesRotations = kRotationStages > 0 && kHasRotation;
  static constexpr int kFirstRotationWarp = kConsumersRotate ? 2 : 2 + kRotatorWarps;
  static constexpr int kQueryWarps =
      kRotatorWarps + (kProducesRotations && !kConsumersRotate ? 1 : 0);
  // Which of a work tile's documents is the first that a rotation is made for. Consumers may have
  // to turn what is kept back to the first document: by nothing.
  static constexpr int kFirstRotation = kConsumersRotate ? 0 : 1;
  // Of few rows all tiles of a KV head's keys and values are one: nothing reads them again.
  static constexpr bool kReadsOnce = !kHasManyRows;
  // Whether of a block no octet is brought that has no slot of its segment: of few rows memory is
  // what all wait for.
  static constexpr bool kSkipsOctets = kReadsOnce;
  static constexpr int kConsumerWarps = Shape::kWarpsM * Shape::kWarpsN;
  // Many rows' queries are turned with the scale of scores in them, where elements hold it as well:
  // scores are logits then, and weights may need nothing but the power of two (ops/softmax.cuh).
  static constexpr bool kScalesQueries = kHasManyRows && Spec::Element::kExponentBias == 127;
  LAZYROPE_DEVICE static float query_scale(const AttendParams& params, float key_scale) {
    return kScalesQueries ? params.scale_log2 * key_scale : 1.0f;
  }
  // What a work tile's stored keys are to be multiplied by.
  LAZYROPE_DEVICE static float key_scale_of(const AttendParams& params, WorkTilePtr work_tile) {
    if constexpr (Spec::Product::kScaled)
      return key_scale(params.pool, work_tile.rows().kv_head);
    else
      return 1.0f;
  }

  // family/sm90a/producer_warps.cuh.
  using Rotators = WarpTeam<2, kRotatorWarps, 1>;
  using RotationWarps = WarpTeam<kFirstRotationWarp, kConsumersRotate ? kRotatorWarps : 1, 1>;
  using Consumers = WarpTeam<kProducerWarps, kConsumerWarps, 2>;
  static constexpr int kGroupWarps = kWarpgroupThreads / kWarpThreads;
  using ConsumerGroups = WarpTeams<kProducerWarps, kGroupWarps, 3>;
  static constexpr int kMmaOrderBarrier = 5;  // and the next
  // The queries of a CTA's first work tile, before the keys and values that fill the rings.
  static constexpr bool kQueriesIssueFirst = kCopyWarps == 2;

  using Tile = WgmmaTile<kHeads * kHeadDim>;  // of keys and values
  using QueryTile = WgmmaTile<kHeadDim>;
  using Original = SharedTile<kHeadDim>;
  static constexpr int kWindows = table_windows(kHasManyRows, kHeadDim);
  using Table = BlockTable<typename Spec::Mask, kKeys, kWindows>;

  static constexpr int kBlockBytes = Tile::bytes(kKeys);
  // Keys and values that are stored in 8 bits are widened where they come to lie, by the warps that
  // turn queries (tile/widened_wgmma_product.cuh).
  static constexpr bool kWidens = Spec::Product::kWidens;
  // Whether those who turn many rows need not go through blocks: they turn for a work tile's first
  // document, and for as many more as there are rotations made. Behind a work tile's last rotation,
  // if it has several documents, its maker tells that there is none.
  static constexpr bool kSignalsRotationEnd = kHasManyRows && !kConsumersRotate && !kWidens;
  static constexpr int kStoredBytes = kWidens ? kBlockBytes / 2 : kBlockBytes;
  static constexpr int kRuns = kKeys / kRunSlots;
  // Where in a run's room its stored bytes come to lie.
  static constexpr int kStoredAt = (kBlockBytes - kStoredBytes) / kRuns;
  static constexpr int kRotatedBytes = QueryTile::bytes(kRows);

  // From the start: rings of keys and of values, turned queries, the original queries unless
  // consumers turn them in place, ones where products add weights, what queries are turned by where
  // a helper finds it, the block table, row positions of each work tile, work tiles, barriers,
  // flags, the number of each work tile's first block, what is the consumers' own.
  static constexpr int kKeyRing = 0;
  static constexpr int kValueRing = kKeyRing + kStages * kBlockBytes;
  static constexpr int kRotatedQueries = kValueRing + kStages * kBlockBytes;
  static constexpr int kOriginal = kRotatedQueries + kRotatedStages * kRotatedBytes;
  static constexpr int kOnes = kOriginal + (kConsumersRotate ? 0 : kRows * Original::kRowBytes);
  static constexpr int kOnesBytes = ones_bytes(kHasManyRows, kHeadDim);
  static constexpr int kRotations = kOnes + kOnesBytes;
  static constexpr int kTable = kRotations + kRotationStages * rotation_bytes(kHeadDim);
  static constexpr int kPositions = kTable + Table::kBytes;
  static constexpr int kWorkTiles = kPositions + kNumWorkTiles * kRows * 4;
  static constexpr int kKeyBarriers =
      kWorkTiles + kNumWorkTiles * static_cast<int>(sizeof(WorkTile));
  static constexpr int kValueBarriers = kKeyBarriers + Pipeline<kStages>::kBytes;
  static constexpr int kStoredBarriers = kValueBarriers + Pipeline<kStages>::kBytes;
  static constexpr int kRotatedBarriers =
      kStoredBarriers + (kWidens ? Pipeline<2 * kStages>::kBytes : 0);
  static constexpr int kRotationBarriers =
      kRotatedBarriers + (kConsumersRotate ? 0 : Pipeline<kRotatedStages>::kBytes);
  static constexpr int kSavedBarriers = kRotationBarriers + Pipeline<kRotationStages>::kBytes;
  static constexpr int kWorkTileBarriers =
      kSavedBarriers + (kConsumersRotate ? Pipeline<kConsumerWarps / kGroupWarps>::kBytes : 0);
  static constexpr int kWindowBarriers = kWorkTileBarriers + Pipeline<kNumWorkTiles>::kBytes;
  static constexpr int kQueryOrder = kWindowBarriers + Pipeline<kWindows>::kBytes;
  static constexpr int kFlags = kQueryOrder + (kQueriesIssueFirst ? kIssueOrderBytes : 0);
  static constexpr int kFirstBlocks = kFlags + 16;
  static constexpr int kConsumerScratch = kFirstBlocks + 16;
  static_assert(kNumWorkTiles * 4 <= 16);
  static constexpr int kBytes = kConsumerScratch + kConsumerScratchBytes;

  SharedPtr at;

  LAZYROPE_DEVICE SharedPtr keys(int32 stage) const {
    return at + (kKeyRing + stage * kBlockBytes);
  }
  LAZYROPE_DEVICE SharedPtr values(int32 stage) const {
    return at + (kValueRing + stage * kBlockBytes);
  }
  LAZYROPE_DEVICE SharedPtr rotated(int32 stage) const {
    return at + (kRotatedQueries + stage * kRotatedBytes);
  }
  LAZYROPE_DEVICE SharedPtr original() const { return at + kOriginal; }
  LAZYROPE_DEVICE SharedPtr ones() const { return at + kOnes; }
  LAZYROPE_DEVICE SharedPtr rotation(int32 stage) const {
    return at + (kRotations + stage * rotation_bytes(kHeadDim));
  }
  LAZYROPE_DEVICE SharedPtr rotation_exists(int32 stage) const {
    return rotation(stage) + rotation_exists_offset(kHeadDim);
  }
  LAZYROPE_DEVICE SharedPtr positions(int32 stage) const {
    return at + (kPositions + stage * kRows * 4);
  }
  LAZYROPE_DEVICE IssueOrder query_order() const { return IssueOrder(at + kQueryOrder); }
  LAZYROPE_DEVICE SharedPtr consumer_scratch() const { return at + kConsumerScratch; }
  LAZYROPE_DEVICE WorkTilePtr work_tile(int32 stage) const {
    return WorkTilePtr(at + (kWorkTiles + stage * static_cast<int32>(sizeof(WorkTile))));
  }
  LAZYROPE_DEVICE SharedPtr first_block(int32 stage) const {
    return at + (kFirstBlocks + stage * 4);
  }
  // What products take of keys, and of turned queries from those `bytes` behind the first on: of
  // the first place, moved to the other, which takes fewer instructions than to describe that.
  LAZYROPE_DEVICE SharedDescriptor key_columns(int32 stage) const {
    return Tile::columns(keys(0)) + stage * kBlockBytes;
  }
  LAZYROPE_DEVICE SharedDescriptor rotated_columns(int32 stage, int32 bytes) const {
    return QueryTile::columns(rotated(0) + bytes) + stage * kRotatedBytes;
  }

  // `first_block`: for whoever fills it.
  LAZYROPE_DEVICE Table table(const StepView& step, WorkTilePtr work_tile,
                              int32 first_block = 0) const {
    return Table(at + kTable, {0, 1, 1, 0}, step, work_tile, first_block);
  }
  // The place of the window that a block lies in.
  LAZYROPE_DEVICE static int32 window_of(int32 block) {
    return static_cast<int32>(static_cast<uint32>(block) / Table::kWindow % kWindows);
  }

  // All threads of the CTA, before anything else. Several do it: barriers are slow to make.
  LAZYROPE_DEVICE void init() const {
    constexpr uint32 kNumConsumers = kConsumerWarps;
    constexpr uint32 kNumAllConsumers = kNumConsumers + kQueryWarps + kCopyWarps;
    constexpr uint32 kNumWindowConsumers =
        kNumAllConsumers - (kSignalsRotationEnd ? kRotatorWarps : 0);
    constexpr uint32 kNumTileProducers = kWidens ? kRotatorWarps : 1;
    if constexpr (kOnesBytes > 0) fill_ones();
    const int32 warp = lane_index() == 0 ? warp_index() : -1;
    if (warp == 0) Pipeline<kNumWorkTiles>::init(at + kWorkTileBarriers, 1, kNumAllConsumers);
    if (warp == 1) Pipeline<kWindows>::init(at + kWindowBarriers, 1, kNumWindowConsumers);
    if (warp == 2 && !kConsumersRotate)
      Pipeline<kRotatedStages>::init(at + kRotatedBarriers, kRotatorWarps, kNumConsumers);
    if (warp == 3) Pipeline<kStages>::init(at + kKeyBarriers, kNumTileProducers, kNumConsumers);
    if (warp == 4) Pipeline<kStages>::init(at + kValueBarriers, kNumTileProducers, kNumConsumers);
    if (warp == 5 && kProducesRotations)
      Pipeline<kRotationStages>::init(at + kRotationBarriers, RotationWarps::size() / kWarpThreads,
                                      kConsumersRotate ? kNumConsumers : kRotatorWarps);
    // A place a warpgroup, which fills and uses it: nobody waits until it is empty.
    if (warp == 6 && kConsumersRotate && kHasRotation)
      Pipeline<kConsumerWarps / kGroupWarps>::init(at + kSavedBarriers, kGroupWarps, kGroupWarps);
    if (warp == 6 && kQueriesIssueFirst) IssueOrder::init_barrier(at + kQueryOrder, kRotatorWarps);
    // A place is empty again when what it was widened to has been used.
    if (warp == 7 && kWidens) Pipeline<2 * kStages>::init(at + kStoredBarriers, 1, 1);
    bar_sync();
  }

 private:
  LAZYROPE_DEVICE void fill_ones() const {
    const uint32 one = Spec::Element::pack(1.0f, 1.0f);
    for (int32 i = thread_index(); i < kOnesBytes / 16; i += block_threads())
      st_shared(ones() + i * 16, Chunk{one, one, one, one});
    fence_proxy_async();
  }
};

// Whether all blocks of a work tile lie in one document.
template <class Memory>
LAZYROPE_DEVICE bool has_one_document(WorkTilePtr work_tile) {
  return work_tile.extent().num_blocks <= ceil_div(work_tile.start().end, Memory::kKeys);
}

// A warp's way through what its CTA is to do: use(work tile, place) for each work tile as it comes.
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
    has_next = !work_tile.is_last();  // asked when needed: held, it would cost a register
    work_tiles.release(stage.index);
    stage.advance();
  }
}

}  // namespace lazyrope
