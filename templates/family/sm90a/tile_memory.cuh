// Shared memory of a CTA of family sm90a, and how what lies there passes between its warps.
#pragma once

#include "isa/bulk_copy.cuh"
#include "ops/pool_scales.cuh"
#include "ops/split_tile.cuh"
#include "pipeline/block_table.cuh"
#include "pipeline/handover.cuh"
#include "pipeline/precedence.cuh"
#include "tile/wgmma_tile.cuh"

namespace lazyrope {

// kOwnBytes: what consumers alone use.
template <class Spec, class Shape, int kOwnBytes = 0>
struct TileMemory {
  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int kRows = Shape::kRowWarps * Shape::kWarpRows;
  // Whether warps divide them: chunks and prefill, whose items may come from a queue.
  static constexpr bool kHasManyRows = Shape::kKeyWarps == 1;
  static constexpr int kHeads = Shape::kHeads;  // side by side, a panel or several each
  static constexpr int kGroups = kHasManyRows ? 1 : Shape::kRowWarps;  // that divide them
  static constexpr int kHeadRows = kRows / kHeads;
  static constexpr int kKeys = Shape::kKeyWarps * Shape::kWarpKeys;  // of a block
  static constexpr int kStages = Shape::kStages;                     // of keys, and of values
  static constexpr bool kConsumersTurn = consumers_turn(kHasManyRows, kHeadDim);
  static constexpr int kTurnedPlaces = turned_places(kHasManyRows, kHeadDim, kRows);
  static constexpr int kItems = kItemsAtOnce;
  static constexpr int kHelperWarps = helper_warps(kHasManyRows, kHeadDim);
  static constexpr bool kQueriesTurn = Spec::Pairing::kUnits > 0;
  // At most one for each of an SM's schedulers: a second would hold up what is computed there, for
  // which the others wait.
  static constexpr int kTurningWarps =
      kConsumersTurn && !kQueriesTurn ? 0 : smaller(kHelperWarps - 2, 4);
  // Of keys and of values, where a warp is left for each.
  static constexpr int kCopiers = copying_warps(kHasManyRows, kHeadDim);
  // Whether keys tell that the queries of their document are there, too: those who compute wait
  // once then, not twice.
  static constexpr bool kKeysTellOfQueries = kCopiers == 2;
  // Helpers find by what many rows are turned: those of the consumers, or one for turning warps.
  static constexpr int kRotationPlaces = rotations_at_once(kHasManyRows, kHeadDim);
  static constexpr bool kMakesRotations = kRotationPlaces > 0 && kQueriesTurn;
  static constexpr int kFirstMaker = kConsumersTurn ? 2 : 2 + kTurningWarps;
  static constexpr int kPreparingWarps =
      kTurningWarps + (kMakesRotations && !kConsumersTurn ? 1 : 0);
  // Which of an item's documents is the first that a rotation is made for. Consumers may have to
  // turn what is kept back to the first document: by nothing.
  static constexpr int kFirstRotation = kConsumersTurn ? 0 : 1;
  // Of few rows all tiles of a KV head's keys and values are one: nothing reads them again.
  static constexpr bool kReadsOnce = !kHasManyRows;
  // Whether of a block no octet is brought that has no slot of its segment: of few rows memory is
  // what all wait for.
  static constexpr bool kLeavesOut = kReadsOnce;
  static constexpr int kConsumerWarps = Shape::kRowWarps * Shape::kKeyWarps;
  // Many rows' queries are turned with the scale of scores in them, where elements hold it as well:
  // scores are logits then, and weights may need nothing but the power of two (ops/softmax.cuh).
  static constexpr bool kScalesQueries = kHasManyRows && Spec::Element::kExponentBias == 127;
  LAZYROPE_DEVICE static float query_scale(const AttendParams& params, float key_scale) {
    return kScalesQueries ? params.scale_log2 * key_scale : 1.0f;
  }
  // What an item's stored keys are to be multiplied by.
  LAZYROPE_DEVICE static float key_scale_of(const AttendParams& params, ItemPtr item) {
    if constexpr (Spec::Product::kScaled)
      return key_scale(params.pool, item.rows().kv_head);
    else
      return 1.0f;
  }

  // family/sm90a/helpers.cuh.
  using Turners = WarpTeam<2, kTurningWarps, 1>;
  using RotationMakers = WarpTeam<kFirstMaker, kConsumersTurn ? kTurningWarps : 1, 1>;
  using Consumers = WarpTeam<kHelperWarps, kConsumerWarps, 2>;
  static constexpr int kGroupWarps = kWarpgroupThreads / kWarpThreads;
  using ConsumerGroups = WarpTeams<kHelperWarps, kGroupWarps, 3>;
  static constexpr int kProductsBarrier = 5;  // and the next
  // The queries of a CTA's first item, before the keys and values that fill the rings.
  static constexpr bool kQueriesComeFirst = kCopiers == 2;

  using Tile = WgmmaTile<kHeads * kHeadDim>;  // of keys and values
  using QueryTile = WgmmaTile<kHeadDim>;
  using Original = SharedTile<kHeadDim>;
  static constexpr int kWindows = table_windows(kHasManyRows, kHeadDim);
  using Table = BlockTable<typename Spec::Mask, kKeys, kWindows>;

  static constexpr int kBlockBytes = Tile::bytes(kKeys);
  // Keys and values that are stored in 8 bits are widened where they come to lie, by the warps that
  // turn queries (tile/widened_wgmma_product.cuh).
  static constexpr bool kWidens = Spec::Product::kWidens;
  // Whether those who turn many rows need not go through blocks: they turn for an item's first
  // document, and for as many more as there are rotations made. Behind an item's last rotation, if
  // it has several documents, its maker tells that there is none.
  static constexpr bool kMakerTells = kHasManyRows && !kConsumersTurn && !kWidens;
  static constexpr int kStoredBytes = kWidens ? kBlockBytes / 2 : kBlockBytes;
  static constexpr int kRuns = kKeys / kRunSlots;
  // Where in a run's room its stored bytes come to lie.
  static constexpr int kStoredAt = (kBlockBytes - kStoredBytes) / kRuns;
  static constexpr int kTurnedBytes = QueryTile::bytes(kRows);

  // From the start: rings of keys and of values, turned queries, the original queries unless
  // consumers turn them in place, ones where products add weights, what queries are turned by where
  // a helper finds it, the block table, row positions of each item, items, barriers, flags, the
  // number of each item's first block, what is the consumers' own.
  static constexpr int kKeyRing = 0;
  static constexpr int kValueRing = kKeyRing + kStages * kBlockBytes;
  static constexpr int kTurned = kValueRing + kStages * kBlockBytes;
  static constexpr int kOriginal = kTurned + kTurnedPlaces * kTurnedBytes;
  static constexpr int kOnes = kOriginal + (kConsumersTurn ? 0 : kRows * Original::kRowBytes);
  static constexpr int kOnesBytes = ones_bytes(kHasManyRows, kHeadDim);
  static constexpr int kRotations = kOnes + kOnesBytes;
  static constexpr int kTable = kRotations + kRotationPlaces * rotation_bytes(kHeadDim);
  static constexpr int kPositions = kTable + Table::kBytes;
  static constexpr int kItem = kPositions + kItems * kRows * 4;
  static constexpr int kKeyBarriers = kItem + kItems * static_cast<int>(sizeof(Item));
  static constexpr int kValueBarriers = kKeyBarriers + Handover<kStages>::kBytes;
  static constexpr int kStoredBarriers = kValueBarriers + Handover<kStages>::kBytes;
  static constexpr int kTurnedBarriers =
      kStoredBarriers + (kWidens ? Handover<2 * kStages>::kBytes : 0);
  static constexpr int kRotationBarriers =
      kTurnedBarriers + (kConsumersTurn ? 0 : Handover<kTurnedPlaces>::kBytes);
  static constexpr int kKeptBarriers = kRotationBarriers + Handover<kRotationPlaces>::kBytes;
  static constexpr int kItemBarriers =
      kKeptBarriers + (kConsumersTurn ? Handover<kConsumerWarps / kGroupWarps>::kBytes : 0);
  static constexpr int kWindowBarriers = kItemBarriers + Handover<kItems>::kBytes;
  static constexpr int kFirstQueries = kWindowBarriers + Handover<kWindows>::kBytes;
  static constexpr int kFlags = kFirstQueries + (kQueriesComeFirst ? kPrecedenceBytes : 0);
  static constexpr int kFirstBlocks = kFlags + 16;
  static constexpr int kOwn = kFirstBlocks + 16;
  static_assert(kItems * 4 <= 16);
  static constexpr int kBytes = kOwn + kOwnBytes;

  SharedPtr at;

  LAZYROPE_DEVICE SharedPtr keys(int32 place) const {
    return at + (kKeyRing + place * kBlockBytes);
  }
  LAZYROPE_DEVICE SharedPtr values(int32 place) const {
    return at + (kValueRing + place * kBlockBytes);
  }
  LAZYROPE_DEVICE SharedPtr turned(int32 place) const {
    return at + (kTurned + place * kTurnedBytes);
  }
  LAZYROPE_DEVICE SharedPtr original() const { return at + kOriginal; }
  LAZYROPE_DEVICE SharedPtr ones() const { return at + kOnes; }
  LAZYROPE_DEVICE SharedPtr rotation(int32 place) const {
    return at + (kRotations + place * rotation_bytes(kHeadDim));
  }
  LAZYROPE_DEVICE SharedPtr rotation_exists(int32 place) const {
    return rotation(place) + rotation_exists_at(kHeadDim);
  }
  LAZYROPE_DEVICE SharedPtr positions(int32 place) const {
    return at + (kPositions + place * kRows * 4);
  }
  LAZYROPE_DEVICE Precedence first_queries() const { return Precedence(at + kFirstQueries); }
  LAZYROPE_DEVICE SharedPtr own() const { return at + kOwn; }
  LAZYROPE_DEVICE ItemPtr item(int32 place) const {
    return ItemPtr(at + (kItem + place * static_cast<int32>(sizeof(Item))));
  }
  LAZYROPE_DEVICE SharedPtr first_block(int32 place) const {
    return at + (kFirstBlocks + place * 4);
  }
  // What products take of keys, and of turned queries from those `bytes` behind the first on: of
  // the first place, moved to the other, which takes fewer instructions than to describe that.
  LAZYROPE_DEVICE SharedDescriptor key_columns(int32 place) const {
    return Tile::columns(keys(0)) + place * kBlockBytes;
  }
  LAZYROPE_DEVICE SharedDescriptor turned_columns(int32 place, int32 bytes) const {
    return QueryTile::columns(turned(0) + bytes) + place * kTurnedBytes;
  }

  // `first_block`: for whoever fills it.
  LAZYROPE_DEVICE Table table(const StepView& step, ItemPtr item, int32 first_block = 0) const {
    return Table(at + kTable, {0, 1, 1, 0}, step, item, first_block);
  }
  // The place of the window that a block lies in.
  LAZYROPE_DEVICE static int32 window_of(int32 block) {
    return static_cast<int32>(static_cast<uint32>(block) / Table::kWindow % kWindows);
  }

  // All threads of the CTA, before anything else. Several do it: barriers are slow to make.
  LAZYROPE_DEVICE void init() const {
    constexpr uint32 kUsers = kConsumerWarps;
    constexpr uint32 kAllUsers = kUsers + kPreparingWarps + kCopiers;
    constexpr uint32 kWindowUsers = kAllUsers - (kMakerTells ? kTurningWarps : 0);
    constexpr uint32 kTileFillers = kWidens ? kTurningWarps : 1;
    if constexpr (kOnesBytes > 0) fill_ones();
    const int32 warp = lane_index() == 0 ? warp_index() : -1;
    if (warp == 0) Handover<kItems>::init(at + kItemBarriers, 1, kAllUsers);
    if (warp == 1) Handover<kWindows>::init(at + kWindowBarriers, 1, kWindowUsers);
    if (warp == 2 && !kConsumersTurn)
      Handover<kTurnedPlaces>::init(at + kTurnedBarriers, kTurningWarps, kUsers);
    if (warp == 3) Handover<kStages>::init(at + kKeyBarriers, kTileFillers, kUsers);
    if (warp == 4) Handover<kStages>::init(at + kValueBarriers, kTileFillers, kUsers);
    if (warp == 5 && kMakesRotations)
      Handover<kRotationPlaces>::init(at + kRotationBarriers, RotationMakers::size() / kWarpThreads,
                                      kConsumersTurn ? kUsers : kTurningWarps);
    // A place a warpgroup, which fills and uses it: nobody waits until it is empty.
    if (warp == 6 && kConsumersTurn && kQueriesTurn)
      Handover<kConsumerWarps / kGroupWarps>::init(at + kKeptBarriers, kGroupWarps, kGroupWarps);
    if (warp == 6 && kQueriesComeFirst) Precedence::set_up(at + kFirstQueries, kTurningWarps);
    // A place is empty again when what it was widened to has been used.
    if (warp == 7 && kWidens) Handover<2 * kStages>::init(at + kStoredBarriers, 1, 1);
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

// Whether all blocks of an item lie in one document.
template <class Memory>
LAZYROPE_DEVICE bool has_one_document(ItemPtr item) {
  return item.extent().num_blocks <= ceil_div(item.start().end, Memory::kKeys);
}

// A warp's way through what its CTA is to do: use(item, place) for each item as it comes.
template <class Memory, class Use>
LAZYROPE_DEVICE void for_each_item(Memory memory, const Use& use) {
  UseSide items(memory.at + Memory::kItemBarriers);
  RingPlace<Memory::kItems> place;
  bool has_next = true;
  while (has_next) {
    items.wait(place.at);
    const ItemPtr item = memory.item(place.at);
    if (item.extent().num_rows == 0) return;
    use(item, place.at);
    has_next = !item.is_last();  // asked when needed: held, it would cost a register
    items.pass(place.at);
    place.advance();
  }
}

}  // namespace lazyrope
