// Family sm80: one work item by mma.sync, ldmatrix and cp.async (sm_80 and every later GPU).
//
// A CTA of kRowWarps x kKeyWarps warps takes kRowWarps * kWarpRows query rows against blocks of
// kKeyWarps * kWarpKeys keys. Either the warps divide the rows and share each block (one ring for
// the CTA: chunks and prefill), or they divide the keys and each keeps its own ring, never waiting
// for the others until the end (decode).
//
// A warp's queries lie in shared memory, turned for the base of the present segment; on a block of
// another base the warp alone turns them anew from the original, in fp32, rounded once.
#pragma once

#include "ops/mask_scores.cuh"
#include "ops/merge.cuh"
#include "ops/pool_scales.cuh"
#include "ops/query_rows.cuh"
#include "ops/rotate.cuh"
#include "ops/softcap.cuh"
#include "ops/softmax.cuh"
#include "ops/split_tile.cuh"
#include "pipeline/kv_ring.cuh"

namespace lazyrope {

template <class Spec, class Shape>
class AttendTile {
  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int kRows = Shape::kRowWarps * Shape::kWarpRows;
  static constexpr int kBlockKeys = Shape::kKeyWarps * Shape::kWarpKeys;
  static constexpr int kStages = Shape::kStages;
  static constexpr bool kDividesKeys = Shape::kKeyWarps > 1;
  static constexpr bool kCaps = Spec::kSoftcap > 0.0f;
  static_assert(Shape::kRowWarps == 1 || Shape::kKeyWarps == 1);

  static constexpr int kRowTiles = Shape::kWarpRows / 16;
  static constexpr int kKeyTiles = Shape::kStepKeys / 8;

  using Mask = typename Spec::Mask;
  using Product = typename Spec::Product;
  using QueryTile = typename Product::QueryTile;
  using KvTile = typename Product::KvTile;
  static constexpr int kColumnTiles = Product::kColumnTiles;
  using RingTeam = Team<Shape::kRowWarps * kWarpThreads>;
  using Ring = KvRing<RingTeam, typename Product::StoredTile, Shape::kWarpKeys, kStages>;
  using Table = BlockTable<Mask, kBlockKeys, Shape::kWarpKeys / kRunSlots>;
  using Record = PartRecord<kHeadDim>;
  // A window of the table is asked for kWindow blocks before its first block is current, hence
  // kWindow - (kStages - 1) before it is issued; its page numbers take kStages - 1 blocks to be
  // waited for.
  static_assert(Table::kWindow >= 2 * (kStages - 1));

  // Shared memory, from its start: ring(s), each warp's turned queries, the original queries (where
  // several warps turn the same rows), a widened block (where the pool's is too narrow for
  // products), block tables, row positions, the item, a flag.
  static constexpr int kQueryBytes = Shape::kWarpRows * QueryTile::kRowBytes;
  static constexpr int kQueries = Shape::kKeyWarps * Ring::kBytes;
  static constexpr int kOriginal = kQueries + Shape::kRowWarps * Shape::kKeyWarps * kQueryBytes;
  static constexpr int kWide = kOriginal + (kDividesKeys ? kRows * QueryTile::kRowBytes : 0);
  static constexpr int kWideTileBytes = Product::kWidens ? Shape::kWarpKeys * KvTile::kRowBytes : 0;
  static constexpr int kTiles = kWide + 2 * kWideTileBytes;
  // Results leave where rings and queries were.
  static constexpr int kLeavingRows = Shape::kRowWarps * 16;
  static constexpr int kTables = larger(kTiles, Shape::kKeyWarps * kLeavingRows * Record::kBytes);
  static constexpr int kPositions = kTables + Shape::kKeyWarps * Table::kBytes;
  static constexpr int kItem = kPositions + kRows * 4;
  static constexpr int kFlag = kItem + static_cast<int>(sizeof(Item));
  static constexpr int kScale = kFlag + 4;  // of scores, where the pool is scaled

 public:
  static constexpr int kSharedBytes = kFlag + 16;

  // All threads of the CTA, item after item. `memory` is aligned to 1024 bytes. Of the item before
  // nobody reads any more: finish() has a barrier behind its last look at it.
  LAZYROPE_DEVICE static void run(const AttendParams& params, const Item* item, SharedPtr memory) {
    ItemPtr(memory + kItem).copy_from(item);
    bar_sync();
    AttendTile tile(params, memory);
    tile.attend();
    tile.finish();
  }

 private:
  LAZYROPE_DEVICE AttendTile(const AttendParams& params, SharedPtr memory)
      : params_(params), memory_(memory) {}

  LAZYROPE_DEVICE ItemPtr item() const { return ItemPtr(memory_ + kItem); }
  LAZYROPE_DEVICE static int32 row_warp() { return kDividesKeys ? 0 : warp_index(); }
  LAZYROPE_DEVICE static int32 key_warp() { return kDividesKeys ? warp_index() : 0; }
  LAZYROPE_DEVICE static int32 first_row() { return row_warp() * Shape::kWarpRows; }
  LAZYROPE_DEVICE static int32 first_key() { return key_warp() * Shape::kWarpKeys; }

  LAZYROPE_DEVICE SharedPtr queries() const {
    return memory_ + kQueries + warp_index() * kQueryBytes;
  }

  LAZYROPE_DEVICE void attend() {
    const Table table(memory_ + kTables + key_warp() * Table::kBytes,
                      key_warp() * (Shape::kWarpKeys / kRunSlots), params_.step, item());
    const Ring ring(memory_ + key_warp() * Ring::kBytes, params_.pool, first_key());
    start();
    bool turned = false;
    int32 base = 0;
    // The rounds before block 0 only fill the ring.
#pragma unroll 1
    for (int32 block = 1 - kStages; block < item().extent().num_blocks; ++block) {
      ring.wait();
      resolve_ahead(table, block);
      if (block + kStages - 1 < item().extent().num_blocks)
        ring.issue(table, block + kStages - 1, item().rows().kv_head);
      cp_async_commit_group();
      if constexpr (Product::kWidens) {
        if (block >= 0) widen(ring, block);
      }
      if (block < 0 || first_row() >= item().extent().num_rows) continue;
      const int32 block_base = table.info(block).base;
      if (!turned || block_base != base) turn_queries(block_base);
      turned = true;
      base = block_base;
#pragma unroll 1
      for (int32 key = 0; key < Shape::kWarpKeys; key += Shape::kStepKeys)
        attend_keys(table.info(block), keys_of(ring, block), values_of(ring, block), key);
    }
    softmax_.finish();
  }

  // All threads of the CTA; what was widened before has been read when the ring's wait is over.
  LAZYROPE_DEVICE void widen(const Ring& ring, int32 block) const {
    static_assert(!kDividesKeys || !Product::kWidens);
    Product::template widen<Shape::kWarpKeys, RingTeam::kThreads>(memory_ + kWide, ring.keys(block),
                                                                  thread_index());
    Product::template widen<Shape::kWarpKeys, RingTeam::kThreads>(
        memory_ + kWide + kWideTileBytes, ring.values(block), thread_index());
    bar_sync();
  }
  LAZYROPE_DEVICE SharedPtr keys_of(const Ring& ring, int32 block) const {
    return Product::kWidens ? memory_ + kWide : ring.keys(block);
  }
  LAZYROPE_DEVICE SharedPtr values_of(const Ring& ring, int32 block) const {
    return Product::kWidens ? memory_ + kWide + kWideTileBytes : ring.values(block);
  }

  LAZYROPE_DEVICE static bool resolves() { return kDividesKeys || warp_index() == 0; }

  // Window 0 before the first tile is asked for, window w + 1 as the first block of window w is
  // read.
  LAZYROPE_DEVICE void resolve_ahead(const Table& table, int32 block) const {
    const bool first = block == 1 - kStages;
    const int32 window = first ? 0 : block / Table::kWindow + 1;
    const bool due = first || (block >= 0 && block % Table::kWindow == 0);
    if (!due || window * Table::kWindow >= item().extent().num_blocks) return;
    if (resolves()) table.resolve(window);
    if (first) {
      cp_async_commit_group();
      cp_async_wait_group<0>();
      RingTeam::sync();
    }
  }

  LAZYROPE_DEVICE void start() {
    if constexpr (Product::kScaled) {
      if (thread_index() == 0)
        st_shared(memory_ + kScale,
                  params_.scale_log2 * key_scale(params_.pool, item().rows().kv_head));
    }
    copy_row_positions<Spec, kRows>(memory_ + kPositions, params_.step.positions, item());
    if constexpr (kDividesKeys)
      copy_query_rows<Spec, kRows, Shape::kKeyWarps * kWarpThreads>(memory_ + kOriginal, params_.q,
                                                                    item(), 0);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    bar_sync();
    if constexpr (kDividesKeys) copy_tile(queries(), memory_ + kOriginal);
    set_zero(rows_);
    softmax_.reset();
    if constexpr (Spec::kSinks) add_sinks();
  }

  // Once a row: by the first part of a split tile, and one of the warps that divide keys.
  LAZYROPE_DEVICE void add_sinks() {
    if (item().split().index != 0 || key_warp() != 0) return;
    const ItemRows rows = item().rows();
    const int32 last = item().extent().num_rows - 1;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int32 row = first_row() + m * 16 + row_of(lane_index(), 2 * h);
        const QueryRow<Spec> from(rows, smaller(row, last));
        softmax_.add_sink(m, h, ld_global_nc(params_.sinks + from.head) * kLog2e);
      }
  }

  // One warp; so that rows past the item's last hold zeros, which no rotation writes.
  LAZYROPE_DEVICE static void copy_tile(SharedPtr to, SharedPtr from) {
#pragma unroll 1
    for (int32 i = lane_index(); i < Shape::kWarpRows * QueryTile::kChunks; i += kWarpThreads) {
      const int32 row = i / QueryTile::kChunks;
      const int32 chunk = i % QueryTile::kChunks;
      st_shared(QueryTile::chunk(to, row, chunk),
                ld_shared<Chunk>(QueryTile::chunk(from, row, chunk)));
    }
  }

  // Turns the warp's queries for a segment whose token 0 lies at logical position `base`. The
  // products before have read them: the ring has been waited for since.
  LAZYROPE_DEVICE void turn_queries(int32 base) const {
    SharedPtr original = memory_ + kOriginal;
    if constexpr (!kDividesKeys) {
      original = queries();
      copy_query_rows<Spec, Shape::kWarpRows, kWarpThreads>(original, params_.q, item(),
                                                            first_row());
      cp_async_commit_group();
      cp_async_wait_group<0>();
      bar_warp_sync();
    }
    rotate_rows<Spec>(queries(), original, positions(),
                      smaller(item().extent().num_rows - first_row(), Shape::kWarpRows), base);
    bar_warp_sync();
  }

  LAZYROPE_DEVICE SharedPtr positions() const { return memory_ + kPositions + first_row() * 4; }

  LAZYROPE_DEVICE PositionRange position_range() const {
    const ItemExtent extent = item().extent();
    return {extent.first_position, extent.last_position};
  }

  // Of scores, times log2(e).
  LAZYROPE_DEVICE float scale_log2() const {
    if constexpr (Product::kScaled)
      return ld_shared<float>(memory_ + kScale);  // in a register it would be one too many
    else
      return params_.scale_log2;
  }

  // The warp's rows against keys `key` to key + kStepKeys - 1 of its part of a block.
  LAZYROPE_DEVICE void attend_keys(const BlockInfo& info, SharedPtr keys, SharedPtr values,
                                   int32 key) {
    const int32 begin = info.begin - first_key() - key;
    const int32 end = info.end - first_key() - key;
    if (end <= 0 || begin >= Shape::kStepKeys) return;
    const int32 position = info.position + first_key() + key;
    float scores[kRowTiles][kKeyTiles][4];
    Product::multiply_query_key(scores, Product::query_fragment(queries(), lane_index()),
                                KvTile::fragment(keys, lane_index()) + key * KvTile::kRowBytes);
    if constexpr (kCaps) cap_scores(scores, scale_log2(), Spec::kSoftcap);
    if (begin > 0 || end < Shape::kStepKeys ||
        !all_visible<Mask>(position_range(), position, position + Shape::kStepKeys - 1))
      mask_scores<Mask>(scores, positions(), position, begin, end);
    softmax_.weigh(scores, rows_, kCaps ? 1.0f : scale_log2());
    Product::multiply_weight_value(
        rows_, scores, KvTile::fragment(values, lane_index()) + key * KvTile::kRowBytes);
  }

  // Rows leave by way of shared memory, 16 of each warp at a time; there the parts of warps that
  // divided the keys are merged. No copy is under way any more: the last blocks' rounds asked for
  // none.
  LAZYROPE_DEVICE void finish() const {
    const ItemSplit split = item().split();
    const int32 num_rows = item().extent().num_rows;
    const OutputRows<Spec> output(params_, item());
    const PartialRows<kHeadDim> partial(params_.work, split);
#pragma unroll 1
    for (int32 round = 0; round < kRowTiles; ++round) {
      bar_sync();
      leave_part(round);
      bar_sync();
#pragma unroll 1
      for (int32 i = thread_index(); i < kLeavingRows * Record::kQuads; i += block_threads()) {
        const int32 left = i / Record::kQuads;
        const int32 quad = i % Record::kQuads;
        const int32 row = left / 16 * Shape::kWarpRows + round * 16 + left % 16;
        if (row >= num_rows) continue;
        const RowPart part = merge_parts<Shape::kKeyWarps>(Shape::kKeyWarps, [&](int32 key_warp) {
          return left_part(key_warp * kLeavingRows + left, quad);
        });
        if (split.count == 1)
          output.write(row, quad, part);
        else
          partial.write(row, quad, part);
      }
    }
    if (split.count == 1) return;
    const SplitTile tile(params_.work, split, num_rows, Record::kQuads, memory_ + kFlag);
    tile.merge_slices(item().rows().is_last != 0, [&](int32 first_row, int32 end_row) {
#pragma unroll 1
      for (int32 i = first_row * Record::kQuads + thread_index(); i < end_row * Record::kQuads;
           i += block_threads()) {
        const int32 row = i / Record::kQuads;
        const int32 quad = i % Record::kQuads;
        output.write(row, quad, merge_parts<8>(split.count, [&](int32 part) {
                       return partial.read(part, row, quad);
                     }));
      }
    });
  }

  LAZYROPE_DEVICE SharedPtr left_record(int32 index) const {
    return memory_ + index * Record::kBytes;
  }
  LAZYROPE_DEVICE RowPart left_part(int32 index, int32 quad) const {
    const SharedPtr record = left_record(index);
    return row_part(ld_shared<Chunk>(record + quad * 16),
                    ld_shared<RowStats>(record + Record::kStats));
  }

  LAZYROPE_DEVICE void leave_part(int32 round) const {
    const int32 lane = lane_index();
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m) {
      if (m != round) continue;
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int32 row = row_warp() * 16 + row_of(lane, 2 * h);
        const SharedPtr record = left_record(key_warp() * kLeavingRows + row);
        if (lane % 4 == 0)
          st_shared(record + Record::kStats, RowStats{softmax_.maximum[m][h], softmax_.sum[m][h]});
        Product::leave_row(record, rows_[m], lane, h);
      }
    }
  }

  const AttendParams& params_;
  SharedPtr memory_;
  float rows_[kRowTiles][kColumnTiles][4];
  SoftmaxState<kRowTiles> softmax_;
};

}  // namespace lazyrope
