// Family sm80, many rows: attention of chunks of queries and of prefill, by mma.sync, ldmatrix and
// cp.async (sm_80 and every later GPU).
//
// A work tile has up to kWarpsM * kWarpM packed query rows of one KV head, and a range of KV blocks
// of kWarpN keys. The kernel computes out = softmax(rotated q x keys^T) x values, or a partial
// result if the tile has several KV splits.
//
// Reads: q [tokens, heads, head_dim], the pools of keys and values [pages, slots, kv_heads,
// head_dim] by strides, the step's work tiles, segments and positions (abi/attend.h), and the bias
// of keys if the spec has one (abi/key_bias.h).
// Writes: out, shaped like q, and lse [tokens, heads], or rows of partial results [rows, head_dim]
// (abi/step.h).
//
// All kWarpsM warps have the same role: warp w computes rows w * kWarpM and following against every
// block. All threads copy each block into one KvRing. Warp 0 also fills the block table. If the
// pool has 8-bit elements, all threads widen each block to 16 bits first.
//
// Each warp has its rotated queries in shared memory. At a block with another base the warp copies
// its queries again and rotates them, in fp32 with one rounding. If the pool holds raw keys, all
// threads rotate each block of keys in place instead, and each warp rotates its queries once.
//
// | barrier                   | who arrives | who waits | what it protects                        |
// |---------------------------|-------------|-----------|-----------------------------------------|
// | run()                     | all threads | the CTA   | the work tile; staged results, until    |
// |                           |             |           | they have been read                     |
// | resolve_ahead(), window 0 | all threads | the CTA   | window 0 of the block table             |
// | KvRing::wait()            | all threads | the CTA   | the next block, row positions, the next |
// |                           |             |           | window; the previous block and the      |
// |                           |             |           | widened block, until they have been     |
// |                           |             |           | read                                    |
// | widen()                   | all threads | the CTA   | the widened block                       |
// | rotate_raw_keys()         | all threads | the CTA   | the rotated keys                        |
// | rotate_queries(), two     | 32 lanes    | the warp  | copied queries, then rotated queries    |
// | finish(), before staging  | all threads | the CTA   | ring, queries or staged rows, until     |
// |                           |             |           | they have been read; the work tile      |
// | finish(), after staging   | all threads | the CTA   | staged rows                             |
// | WorkTileResult::finish()  | all threads | the CTA   | see ops/combine_scheduler.cuh           |
//
// Barriers of the CTA are bar.sync 0 of kWarpsM * 32 threads; those of a warp are bar.warp.sync.
#pragma once

#include "abi/shared_layout.h"
#include "ops/cells.cuh"
#include "ops/key_bias.cuh"
#include "ops/mask_scores.cuh"
#include "ops/page_mass.cuh"
#include "ops/rotate.cuh"
#include "ops/rotate_keys.cuh"
#include "ops/sinks.cuh"
#include "ops/softcap.cuh"
#include "ops/softmax.cuh"
#include "ops/states.cuh"
#include "ops/temperature.cuh"
#include "ops/work_tile_result.cuh"
#include "pipeline/kv_ring.cuh"
#include "tile/query_fragments.cuh"

namespace lazyrope {

template <class Spec, class Shape>
class Sm80Prefill {
  static constexpr int kHeadDim = Spec::kHeadDim;
  static constexpr int kRows = Shape::kWarpsM * Shape::kWarpM;
  static constexpr int kBlockKeys = Shape::kWarpN;
  static constexpr int kStages = Shape::kStages;
  static_assert(Shape::kWarpsN == 1);

  static constexpr int kRowTiles = Shape::kWarpM / 16;
  static constexpr int kKeyTiles = Shape::kMmaN / 8;

  using Mask = typename Spec::Mask;
  using Product = typename Spec::Product;
  using QueryTile = typename Product::QueryTile;
  using Queries = SharedQueries<Product, kRowTiles, 8>;  // 5.5% less time at head_dim 128 (H100)
  using KvTile = typename Product::KvTile;
  static constexpr int kColumnTiles = Product::kColumnTiles;
  using RingTeam = Team<Shape::kWarpsM * kWarpThreads>;
  using Ring = KvRing<RingTeam, typename Product::StoredTile, kBlockKeys, kStages>;
  static constexpr bool kHasStates = Spec::kMemories > 0;
  using Table = BlockTable<Mask, kBlockKeys, 2, Spec::kMeasuresPageMass, kHasStates>;
  using Record = PartialRecord<kHeadDim>;
  // A window is resolved kWindow blocks before its first block is read. That block is issued
  // kStages - 1 blocks before it is read, and page numbers arrive within kStages - 1 blocks.
  static_assert(Table::kWindow >= 2 * (kStages - 1));

  static constexpr Sm80PrefillLayout kLayout =
      layout_of(Sm80PrefillShape{.head_dim = kHeadDim,
                                 .warps_m = Shape::kWarpsM,
                                 .warp_m = Shape::kWarpM,
                                 .block_n = kBlockKeys,
                                 .stages = kStages,
                                 .kv_bytes = Product::StoredTile::kBytesPerElement,
                                 .states = kHasStates});
  static_assert(Ring::kBytes == kLayout.queries && Table::kBytes == kLayout.table_bytes);
  static constexpr int kQueryBytes = Shape::kWarpM * QueryTile::kRowBytes;
  static constexpr int kWideTileBytes = Product::kWidens ? kBlockKeys * KvTile::kRowBytes : 0;
  static constexpr int kStagedRows = Shape::kWarpsM * 16;
  // If the pool has scales, the factor from a score to a logit in log2 units is after the flags.
  static constexpr int kScale = kLayout.flags + kFlagBytes;

 public:
  using Params = typename SelectParams<AttendParams, Spec::kHasKeyBias>::Type;

  // All threads of the CTA call this. It computes the CTA's work tiles in sequence. `memory` is
  // aligned to 1024 bytes.
  LAZYROPE_DEVICE static void run(const Params& params, SharedPtr memory) {
    int32 work_tile = block_index();
    do {
      // No thread reads the previous work tile any more: finish() reads it before a barrier.
      Sm80Prefill tile(params, memory);
      tile.work_tile().copy_from(params.work.work_tiles + work_tile);
      bar_sync();
      if (tile.work_tile().extent().num_rows == 0) return;
      tile.attend();
      work_tile = tile.finish();
    } while (work_tile >= 0);
  }

 private:
  LAZYROPE_DEVICE Sm80Prefill(const Params& params, SharedPtr memory)
      : params_(params), memory_(memory) {}

  LAZYROPE_DEVICE WorkTilePtr work_tile() const { return WorkTilePtr(memory_ + kLayout.work_tile); }
  LAZYROPE_DEVICE static int32 first_row() { return warp_index() * Shape::kWarpM; }

  LAZYROPE_DEVICE SharedPtr queries() const {
    return memory_ + kLayout.queries + warp_index() * kQueryBytes;
  }

  LAZYROPE_DEVICE void attend() {
    const Table table(memory_ + kLayout.table, {0, 1, 1, 0}, params_.step, work_tile());
    const Ring ring(memory_, params_.pool);
    start();
    int32 base = 0;
    // The iterations before block 0 only fill the ring.
#pragma unroll 1
    for (int32 block = 1 - kStages; block < work_tile().extent().num_blocks; ++block) {
      ring.wait();
      resolve_ahead(table, block);
      issue(table, ring, block + kStages - 1);
      if constexpr (Product::kWidens) {
        if (block >= 0) widen(ring, block);
      }
      if constexpr (Spec::kRawKeys) {
        if (block >= 0) rotate_raw_keys(ring.keys(block), table.info(block));
      }
      if (block < 0 || first_row() >= work_tile().extent().num_rows) continue;
      const int32 block_base = query_base<Spec>(table.info(block).base);
      if (block == 0 || block_base != base) rotate_queries(block_base);
      base = block_base;
      if constexpr (kHasStates) {
        if (warp_uniform(is_memory(table.memory_code(block)))) {
          if (warp_uniform(has_cells(table.memory_code(block))))
            look_up_cells(table, block);
          else
            scan_block(table, ring, block);
          continue;
        }
      }
#pragma unroll 1
      for (int32 key = 0; key < kBlockKeys; key += Shape::kMmaN)
        attend_keys(table, block, keys_of(ring, block), values_of(ring, block), key);
    }
    softmax_.finish();
  }

  // Issues one cp.async group, which is empty after the last block.
  LAZYROPE_DEVICE void issue(const Table& table, const Ring& ring, int32 block) const {
    if (block < work_tile().extent().num_blocks) {
      if (kHasStates && is_memory(table.memory_code(block)))
        ring.issue_entries(table, block, work_tile().rows().kv_head);
      else
        ring.issue(table, block, work_tile().rows().kv_head);
    }
    cp_async_commit_group();
  }

  // All threads of the CTA widen a block. They have read the previous widened block, because they
  // have called KvRing::wait() since.
  LAZYROPE_DEVICE void widen(const Ring& ring, int32 block) const {
    Product::template widen<kBlockKeys, RingTeam::size()>(memory_ + kLayout.wide, ring.keys(block),
                                                          thread_index());
    Product::template widen<kBlockKeys, RingTeam::size()>(memory_ + kLayout.wide + kWideTileBytes,
                                                          ring.values(block), thread_index());
    bar_sync();
  }
  // All threads of the CTA rotate a block's keys in place.
  LAZYROPE_DEVICE static void rotate_raw_keys(SharedPtr keys, const BlockInfo& info) {
    static_assert(!Product::kWidens);
    rotate_keys<Spec, RingTeam, KvTile, kBlockKeys>(keys, info.position);
    bar_sync();
  }
  LAZYROPE_DEVICE SharedPtr keys_of(const Ring& ring, int32 block) const {
    return Product::kWidens ? memory_ + kLayout.wide : ring.keys(block);
  }
  LAZYROPE_DEVICE SharedPtr values_of(const Ring& ring, int32 block) const {
    return Product::kWidens ? memory_ + kLayout.wide + kWideTileBytes : ring.values(block);
  }

  // Resolves window 0 before the first block is issued, and window w + 1 at the first block of
  // window w.
  LAZYROPE_DEVICE void resolve_ahead(const Table& table, int32 block) const {
    const bool first = block == 1 - kStages;
    const int32 window = first ? 0 : block / Table::kWindow + 1;
    const bool due = first || (block >= 0 && block % Table::kWindow == 0);
    if (!due || window * Table::kWindow >= work_tile().extent().num_blocks) return;
    if (warp_index() == 0)
      table.resolve(window, window == 0 ? table.look_up_first() : table.look_up(window));
    if (first) {
      cp_async_commit_group();
      cp_async_wait_group<0>();
      bar_sync();
    }
  }

  // KvRing::wait() makes the stores of this function visible.
  LAZYROPE_DEVICE void start() {
    if constexpr (Product::kScaled) {
      if (thread_index() == 0)
        st_shared(memory_ + kScale,
                  params_.scale_log2 * key_scale(params_.pool, work_tile().rows().kv_head));
    }
    copy_row_positions<Spec, WholeCta, kRows>(
        memory_ + kLayout.positions, params_.step.positions, work_tile(), 0,
        [](SharedPtr to, const int32* from) { st_shared(to, ld_global_nc(from)); });
    set_zero(acc_o_);
    softmax_.reset();
    if constexpr (kHasStates) reset_entries(entries(), kRows, thread_index(), block_threads());
    if (Spec::kSinks && work_tile().split().index == 0)
      add_sinks<Spec>(softmax_, params_.sinks, work_tile().rows(), first_row(),
                      work_tile().extent().num_rows);
  }

  // Rotates the warp's queries for a segment whose token 0 is at logical position `base`. The warp
  // called the ring's wait() after the products that read the previous queries.
  LAZYROPE_DEVICE void rotate_queries(int32 base) const {
    const RowsOf<QueryTile> rows(queries());
    const int32 num_rows = smaller(work_tile().extent().num_rows - first_row(), Shape::kWarpM);
    copy_query_rows<Spec, Team<kWarpThreads>>(queries(), params_, work_tile().rows(), first_row(),
                                              num_rows, 0, Shape::kWarpM);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    bar_warp_sync();
    rotate_rows<Spec>(rows, rows, positions(), num_rows, work_tile().rows().first_row + first_row(),
                      base, DirectAngles<Spec>());
    bar_warp_sync();
  }

  LAZYROPE_DEVICE SharedPtr positions() const {
    return memory_ + kLayout.positions + first_row() * 4;
  }

  // Returns the best entries of the CTA's rows.
  LAZYROPE_DEVICE SharedPtr entries() const { return memory_ + kLayout.entries; }

  LAZYROPE_DEVICE PositionRange position_range() const {
    const WorkTileExtent extent = work_tile().extent();
    return {extent.first_position, extent.last_position};
  }

  // The factor from a score to a logit in log2 units.
  LAZYROPE_DEVICE float scale_log2() const {
    if constexpr (Product::kScaled)
      return ld_shared<float>(memory_ + kScale);  // loaded, because no register is left for it
    else
      return params_.scale_log2;
  }

  // Loads the biases of keys `key` to key + kMmaN - 1 of a block, while the scores are computed.
  LAZYROPE_DEVICE auto load_key_biases(const Table& table, int32 block, int32 key) const {
    if constexpr (Spec::kHasKeyBias) {
      RowKeyBias<Shape::kMmaN> biases;
      biases.load(params_.key_bias, table, block, key, work_tile().rows().kv_head);
      return biases;
    } else {
      return NoKeyBias{};
    }
  }

  // Computes the warp's rows against keys `key` to key + kMmaN - 1 of a block.
  LAZYROPE_DEVICE void attend_keys(const Table& table, int32 block, SharedPtr keys,
                                   SharedPtr values, int32 key) {
    const BlockInfo info = table.info(block);
    const int32 begin = info.begin - key;
    const int32 end = info.end - key;
    if (end <= 0 || begin >= Shape::kMmaN) return;
    const int32 position = info.position + key;
    float scores[kRowTiles][kKeyTiles][4];
    const auto biases = load_key_biases(table, block, key);
    Product::multiply_query_key(scores, Queries(queries(), lane_index()),
                                KvTile::key_fragment(keys, lane_index()) + key * KvTile::kRowBytes);
    const auto capped = apply_softcap<Spec>(
        scores, scale_of_rows<Spec, float[kRowTiles][kKeyTiles][4]>(scale_log2(), positions()));
    const auto scale = biases.add(scores, capped);
    if (begin > 0 || end < Shape::kMmaN ||
        !all_visible<Mask>(position_range(), position, position + Shape::kMmaN - 1))
      mask_scores<Mask>(scores, positions(), position, begin, end);
    softmax_.softmax_step(scores, acc_o_, scale);
    if constexpr (Spec::kMeasuresPageMass) {
      const PageMass<Spec> mass(params_.page_mass);
      mass.store_rows(scores, softmax_,
                      mass.template rows_of<kRowTiles>(work_tile().rows(), first_row(),
                                                       work_tile().extent().num_rows),
                      {table.first_run(block) + key / kRunSlots, runs_before<Shape::kMmaN>(end)});
    }
    Product::multiply_weight_value(
        acc_o_, scores, KvTile::fragment(values, lane_index()) + key * KvTile::kRowBytes);
  }

  // Compares the scores of a block of entries with the best of each row.
  LAZYROPE_DEVICE void scan_block(const Table& table, const Ring& ring, int32 block) const {
    const BlockInfo info = table.info(block);
    const int32 code = table.memory_code(block);
    const int32 packed_row = work_tile().rows().first_row + first_row();
    const SharedPtr best = entry_of(entries() + first_row() * kRowEntryBytes, memory_index(code));
#pragma unroll 1
    for (int32 key = 0; key < 2 * kBlockKeys; key += Shape::kMmaN) {
      const bool is_second = key >= kBlockKeys;
      const SharedPtr tile = is_second ? values_of(ring, block) : keys_of(ring, block);
      const int32 row_in_tile = is_second ? key - kBlockKeys : key;
      float scores[kRowTiles][kKeyTiles][4];
      Product::multiply_query_key(
          scores, Queries(queries(), lane_index()),
          KvTile::key_fragment(tile, lane_index()) + row_in_tile * KvTile::kRowBytes);
      scan_entries<Spec::kGroupSize>(
          scores, best, entry_tile(info, code, key), [&](int32 row) { return packed_row + row; },
          [&](int32 column) {
            return table.location(block, key + column, slot_bits(params_.entry_lse.page_size));
          });
    }
  }

  // Looks up the entries of a segment with cells, for the warp's rows.
  LAZYROPE_DEVICE void look_up_cells(const Table& table, int32 block) const {
    using LookUp = CellLookUp<Spec, QueryTile>;
    const int32 code = table.memory_code(block);
    const CellSlots slots = cell_slots(params_.step, table.info(block).position, code);
    const LookUp look_up(params_, slots, code, work_tile().rows().kv_head, {0, 1});
    const SharedPtr best = entry_of(entries() + first_row() * kRowEntryBytes, memory_index(code));
    const int32 num_rows = smaller(work_tile().extent().num_rows - first_row(), Shape::kWarpM);
    const int32 packed = work_tile().rows().first_row + first_row();
#pragma unroll 1
    for (int32 row = 0; row < num_rows; row += LookUp::kRows) {
      const int32 count = smaller(num_rows - row, LookUp::kRows);
      const LaneEntries found =
          look_up.find({queries(), row, count, packed + row}, [](LaneEntries&) {});
      look_up.template store<kRowEntryBytes>(found, best + row * kRowEntryBytes, count);
    }
  }

  // Stages the results in shared memory, 16 rows of each warp at a time, and writes them. No copy
  // is in flight, because the iterations of the last blocks issued none. Returns the CTA's next
  // work tile, or -1.
  LAZYROPE_DEVICE int32 finish() const {
    const int32 num_rows = work_tile().extent().num_rows;
    const int32 next = work_tile().keys().next;
    const WorkTileResult<Spec> result(params_, work_tile());
#pragma unroll 1
    for (int32 round = 0; round < kRowTiles; ++round) {
      bar_sync();
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m)
        if (m == round)
          store_partial<Product, kHeadDim>(memory_ + warp_index() * 16 * Record::kBytes, acc_o_[m],
                                           softmax_, m);
      bar_sync();
#pragma unroll 1
      for (int32 i = thread_index(); i < kStagedRows * Record::kQuads; i += block_threads()) {
        const int32 staged_row = i / Record::kQuads;
        const int32 quad = i % Record::kQuads;
        const int32 row = staged_row / 16 * Shape::kWarpM + round * 16 + staged_row % 16;
        if (row < num_rows)
          result.write(0, row, quad,
                       load_partial<kHeadDim>(memory_ + staged_row * Record::kBytes, quad),
                       load_entries<Spec::kMemories>(entries(), row));
      }
    }
    result.finish(next < 0, memory_ + kLayout.flags);
    return next;
  }

  const Params& params_;
  SharedPtr memory_;
  float acc_o_[kRowTiles][kColumnTiles][4];
  SoftmaxState<kRowTiles> softmax_;
};

}  // namespace lazyrope
