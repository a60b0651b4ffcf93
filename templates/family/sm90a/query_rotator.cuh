// The query rotator warps rotate a work tile's queries for its next document. If there is a second
// stage, the consumers compute on the present document meanwhile. They also widen 8-bit keys and
// values (kv_widener.cuh). For products of 8 bits they round the rotated queries instead
// (ops/quantize_queries.cuh), and transpose the values (value_transposer.cuh).
//
// Few rows: each row is rotated by its own angle, from the original queries, for every document.
// Many rows: the first document's queries are rotated in the same way and also replace the
// originals. One rotation for all rows, which the rotation producer has computed, makes each later
// document's queries from these (ops/rotate_tile.cuh).
//
// Reads: q [tokens, heads, head_dim] and the rows' positions, in global memory; rotations in shared
// memory.
// Writes: original queries [kRows, head_dim] and positions [kRows], and kRotatedStages stages of
// rotated queries [kRows, head_dim], in shared memory. A wgmma tile (tile/wgmma_tile.cuh) has the
// rotated ones.
//
// Roles: kRotatorWarps warps from warp 2 on. With many rows each warp loads and rotates its own
// kRows / kRotatorWarps rows without synchronizing with the others. With few rows the warps share
// the rows and synchronize by named barrier 1 (Team::sync()). They consume the work tile, window
// and rotation pipelines, and produce the rotated pipeline (tile_memory.cuh).
#pragma once

#include "family/sm90a/kv_widener.cuh"
#include "family/sm90a/value_transposer.cuh"
#include "family/sm90a/window_consumer.cuh"
#include "isa/bulk_copy.cuh"
#include "ops/quantize_queries.cuh"
#include "ops/query_rows.cuh"
#include "ops/rotate.cuh"
#include "ops/rotate_tile.cuh"

namespace lazyrope {

template <class Spec, class Memory>
class QueryRotator {
  using Team = typename Memory::Rotators;
  using Tile = typename Memory::QueryTile;
  using Original = typename Memory::Original;
  using Rotation = TileRotation<Spec>;
  static constexpr int kRows = Memory::kRows;
  static constexpr bool kIsPrefill = Memory::kIsPrefill;
  static constexpr bool kRotatesTiles = kIsPrefill && Memory::kHasRotation;
  static constexpr int kRotatorRows = kRows / Memory::kRotatorWarps;
  // The rows that rotate_tile() has in flight. At head_dim 128 more rows would delay the consumers
  // longer.
  static constexpr int kRowsAtOnce = Memory::kHeadDim < 128 ? 4 : 1;
  static constexpr bool kFloat8 = Memory::kFloat8;
  using Rotator = TileRotator<Rotation, RowsOf<Tile>, RowsOf<Original>, kRotatesTiles && !kFloat8>;
  using Quantizer = QueryQuantizer<Spec, Tile, Original, kRotatorRows>;

 public:
  LAZYROPE_DEVICE QueryRotator(const AttendParams& params, Memory memory)
      : params_(params),
        memory_(memory),
        windows_(memory),
        rotated_(memory.at + Memory::kRotatedBarriers),
        rotations_(memory.at + Memory::kRotationBarriers),
        widener_(memory),
        transposer_(memory),
        warp_(warp_uniform(Team::warp())),
        tile_rotator_({memory.rotated(0), warp_ * kRotatorRows},
                      {memory.original(), warp_ * kRotatorRows}) {
    if constexpr (kRotatesTiles) prefetch_frequencies();
  }

  LAZYROPE_DEVICE void run() {
    for_each_work_tile(memory_, [&](WorkTilePtr work_tile, int32 stage) {
      load(work_tile, stage);
      key_scale_ = Memory::key_scale_of(params_, work_tile);
      const int32 num_blocks = work_tile.extent().num_blocks;
      const auto rotate = [&](int32 base, int32 document) {
        rotate_for_document(document, base, work_tile, stage);
      };
      if (num_blocks == 0) return;
      if constexpr (Memory::kSignalsRotationEnd)
        rotate_until_signal(work_tile, stage);
      else if constexpr (kFloat8)
        rotate_and_transpose(memory_.table(params_.step, work_tile), num_blocks, stage, rotate);
      else if constexpr (Memory::kWidens)
        rotate_and_widen(memory_.table(params_.step, work_tile), num_blocks, stage, rotate);
      else
        windows_.for_each_document(memory_.table(params_.step, work_tile), num_blocks, stage,
                                   rotate);
    });
  }

 private:
  // Loads the frequencies into the L1 cache, before the first keys and values are in flight. The
  // copies write to memory that rotated rows will overwrite. Plain loads without a use would be
  // removed by the compiler, and prefetches reach L2 only. With few rows angles_ has the
  // frequencies.
  LAZYROPE_DEVICE void prefetch_frequencies() const {
    constexpr int32 kBytes = Spec::Pairing::kUnits * Spec::Pairing::kPairs * 8;
    constexpr int32 kLaneBytes = 16;
    static_assert(kBytes <= kWarpThreads * kLaneBytes);
    const SharedPtr rows = memory_.rotated(0) + warp_ * Tile::bytes(kRotatorRows);
    cp_async_ca_4(rows + lane_index() * 4, reinterpret_cast<const uint8*>(Spec::frequencies()) +
                                               lane_index() * kLaneBytes % kBytes);
    cp_async_commit_group();
  }

  // Rotates for the first document, and then for every rotation that is produced.
  LAZYROPE_DEVICE void rotate_until_signal(WorkTilePtr work_tile, int32 stage) {
    rotate_for_document(0, work_tile.start().base, work_tile, stage);
    if constexpr (kRotatesTiles) {
      if (has_one_document<Memory>(work_tile)) return;
#pragma unroll 1
      for (int32 document = 1; wait_for_rotation(); ++document) rotate_tile(document, stage);
      release_rotation();
    }
  }
  LAZYROPE_DEVICE auto scale() const { return Memory::query_scale(params_, key_scale_); }

  // Rotates queries for a document before it widens the document's first keys. Full keys then imply
  // rotated queries.
  template <class Fill>
  LAZYROPE_DEVICE void rotate_and_widen(const typename Memory::Table& table, int32 num_blocks,
                                        int32 stage, const Fill& rotate) {
    int32 block = windows_.begin(stage);
    const int32 end = block + num_blocks;
    int32 document = 0;
    bool begins_document = true;
    bool has_values = false;
#pragma unroll 1
    while (true) {
      const bool has_keys = block < end;
      if (has_keys) {
        const BlockInfo info = table.info(block);
        if (begins_document) rotate(info.base, document++);
        begins_document = info.ends_segment<Memory::Table::kMaxSlots>();
      }
      widener_.widen(has_keys, has_values);
      if (!has_keys) break;
      has_values = true;
      if (++block == end) continue;
      windows_.finish_block(block - 1);
      windows_.enter_block(block);
    }
    windows_.finish_last_block(end - 1);
  }

  // Rotates queries for a document before it transposes the document's first values.
  template <class Fill>
  LAZYROPE_DEVICE void rotate_and_transpose(const typename Memory::Table& table, int32 num_blocks,
                                            int32 stage, const Fill& rotate) {
    int32 block = windows_.begin(stage);
    const int32 end = block + num_blocks;
    int32 document = 0;
    bool begins_document = true;
#pragma unroll 1
    while (true) {
      const BlockInfo info = table.info(block);
      if (begins_document) rotate(info.base, document++);
      begins_document = info.template ends_segment<Memory::Table::kMaxSlots>();
      transposer_.transpose(info);
      if (++block == end) break;
      windows_.finish_block(block - 1);
      windows_.enter_block(block);
    }
    windows_.finish_last_block(end - 1);
  }

  // Loads the queries and positions. With many rows each warp loads its own, and zeros for rows
  // past the work tile's last one, because these are also rotated and read.
  LAZYROPE_DEVICE void load(WorkTilePtr work_tile, int32 stage) {
    const auto copy_position = [](SharedPtr to, const int32* from) { cp_async_ca_4(to, from); };
    const SharedPtr positions = memory_.positions(stage);
    if constexpr (kIsPrefill) {
      const int32 first = warp_ * kRotatorRows;
      for_each_query_chunk<Spec, Original, kRotatorRows>(
          memory_.original(), params_, work_tile.rows(), first, work_tile.extent().num_rows - first,
          first, [](SharedPtr to, const uint8* from, bool exists) {
            cp_async_cg_16<true>(to, from, exists ? 16 : 0);
          });
      copy_row_positions<Spec, lazyrope::Team<kWarpThreads>, kRotatorRows>(
          positions + first * 4, params_.step.positions, work_tile, first, copy_position);
    } else {
      Team::sync();  // no warp rotates the previous work tile's rows any more
      copy_queries(work_tile.rows(), work_tile.extent().num_rows);
      copy_row_positions<Spec, Team, kRows, Memory::kHeadRows>(positions, params_.step.positions,
                                                               work_tile, 0, copy_position);
    }
    cp_async_commit_group();
    signal_issued();
    cp_async_wait_group<0>();
    if constexpr (kIsPrefill)
      bar_warp_sync();
    else
      Team::sync();
  }

  // Signals at the first work tile only.
  LAZYROPE_DEVICE void signal_issued() {
    if constexpr (Memory::kQueriesIssueFirst) {
      if (!has_issued_) memory_.query_order().signal_issued();
      has_issued_ = true;
    }
  }

  LAZYROPE_DEVICE void copy_queries(const WorkTileRows& rows, int32 num_rows) const {
#pragma unroll
    for (int head = 0; head < Memory::kHeads; ++head) {
      const int32 to = head * Memory::kHeadRows;
      copy_query_rows<Spec, Team>(memory_.original(), params_, rows_of_head(rows, head), 0,
                                  num_rows, to, to + num_rows);
    }
  }

  // Without RoPE the queries are the same for all documents.
  LAZYROPE_DEVICE void rotate_for_document(int32 document, int32 base, WorkTilePtr work_tile,
                                           int32 stage) {
    if (document > 0 && !Memory::kHasRotation) return;
    if (kRotatesTiles && document > 0) {
      wait_for_rotation();
      rotate_tile(document, stage);
    } else {
      produce([&](SharedPtr rotated) { rotate_by_row(rotated, base, work_tile, stage); });
    }
  }

  // `fill` reads the fields of the work tile again where it needs them, because registers are
  // scarce.
  template <class Fill>
  LAZYROPE_DEVICE void produce(const Fill& fill) {
    rotated_.acquire(rotated_stage_.index);
    fill(memory_.rotated(rotated_stage_.index));
    rotated_.commit(rotated_stage_.index);
    rotated_stage_.advance();
  }

  LAZYROPE_DEVICE void rotate_by_row(SharedPtr rotated, int32 base, WorkTilePtr work_tile,
                                     int32 stage) const {
    clear_others(work_tile.extent().num_rows);
    if constexpr (kFloat8) {
      rotate_own_rows<Original>(memory_.original(), base, work_tile, stage);
      bar_warp_sync();
      quantizer().template quantize<true>(rotated, memory_.query_scales(stage));
    } else {
      rotate_own_rows<Tile>(rotated, base, work_tile, stage);
    }
    fence_proxy_async();
  }

  // Rotates by the rotation that wait_for_rotation() waited for. The rotation is read before the
  // stage of its queries is acquired. The columns without rotation are the same for all documents
  // of the work tile, so each stage gets them once.
  LAZYROPE_DEVICE void rotate_tile(int32 document, int32 stage) {
    if constexpr (kRotatesTiles) {
      const auto rotation = read_shared_rotation<Rotation>(memory_.rotation(rotation_stage_.index));
      release_rotation();
      produce([&](SharedPtr rotated) {
        if constexpr (kFloat8)
          rotate_and_quantize(rotated, rotation, document, stage);
        else
          rotate_tile_to(rotated, rotation, document);
        fence_proxy_async();
      });
    }
  }
  LAZYROPE_DEVICE void rotate_tile_to(SharedPtr rotated, const Rotation& rotation,
                                      int32 document) const {
    const int32 first = warp_ * kRotatorRows;
    if (document < Memory::kRotatedStages)
      copy_unrotated<Spec>(RowsOf<Tile>(rotated, first),
                           RowsOf<Original>(memory_.original(), first), kRotatorRows);
    tile_rotator_.template rotate<kRotatorRows, kRowsAtOnce>(
        rotation, rotated_stage_.index * Memory::kRotatedBytes);
  }
  LAZYROPE_DEVICE void rotate_and_quantize(SharedPtr rotated, const Rotation& rotation,
                                           int32 document, int32 stage) const {
    const SharedPtr scales = memory_.query_scales(stage);
    if (!Memory::kRotatesAllColumns && document < Memory::kRotatedStages) {
      quantizer().template quantize<false>(rotated, scales);
      bar_warp_sync();  // the rotated columns replace those that were stored now
    }
    quantizer().rotate(rotated, scales, rotation);
  }
  LAZYROPE_DEVICE Quantizer quantizer() const {
    return Quantizer(memory_.original(), warp_ * kRotatorRows);
  }
  // Returns false if the producer signals that there is no further rotation.
  LAZYROPE_DEVICE bool wait_for_rotation() {
    rotations_.wait(rotation_stage_.index);
    return !Memory::kSignalsRotationEnd ||
           ld_shared<int32>(memory_.rotation_exists(rotation_stage_.index)) != 0;
  }
  LAZYROPE_DEVICE void release_rotation() {
    rotations_.release(rotation_stage_.index);
    rotation_stage_.advance();
  }

  // Clears the rows that the work tile does not have, because products read them. Old rows of
  // another request would influence when the maxima of this request are raised, and thus how its
  // results are rounded.
  LAZYROPE_DEVICE void clear_others(int32 num_rows) const {
    if constexpr (kIsPrefill) return;
    const int32 first = Memory::kHeads == 1 ? num_rows * Tile::kChunks : 0;
#pragma unroll 1
    for (int32 i = first + Team::rank(); i < kRows * Tile::kChunks; i += Team::size()) {
      const int32 row = i / Tile::kChunks;
      if (row % Memory::kHeadRows >= num_rows)
        st_shared(Tile::chunk(memory_.rotated(rotated_stage_.index), row, i % Tile::kChunks),
                  Chunk{});
    }
  }

  // Each warp rotates rows of one head. The warps of a head divide its rows, and few rows are
  // spread over as many warps as possible.
  template <class To>
  LAZYROPE_DEVICE void rotate_own_rows(SharedPtr rotated, int32 base, WorkTilePtr work_tile,
                                       int32 stage) const {
    const auto& angles = angles_.get();
    constexpr int kWarps = Memory::kRotatorWarps / Memory::kHeads;  // warps of a head
    static_assert(kWarps * Memory::kHeads == Memory::kRotatorWarps);
    constexpr int32 kAlignment = kIsPrefill ? 4 : 1;
    const int32 num_rows = kIsPrefill ? kRows : work_tile.extent().num_rows;  // rows of each head
    const int32 head = warp_ / kWarps;
    const int32 rows_per_warp = ceil_div(num_rows, kWarps * kAlignment) * kAlignment;
    const int32 first = warp_ % kWarps * rows_per_warp;
    const int32 at = head * Memory::kHeadRows + first;
    constexpr bool kMayStoreBack = kRotatesTiles && !kFloat8;
    rotate_rows<Spec, kIsPrefill ? 4 : 2, kMayStoreBack>(
        RowsOf<To>(rotated, at), RowsOf<Original>(memory_.original(), at),
        memory_.positions(stage) + at * 4, smaller(num_rows - first, rows_per_warp),
        work_tile.rows().first_row + first, base, angles, scale(),
        kMayStoreBack && !has_one_document<Memory>(work_tile));
  }

  const AttendParams& params_;
  Memory memory_;
  WindowConsumer<Memory> windows_;
  PipelineProducer rotated_;
  PipelineStage<Memory::kRotatedStages> rotated_stage_;
  PipelineConsumer rotations_;
  PipelineStage<Memory::kRotationStages> rotation_stage_;
  KvWidener<Spec, Memory> widener_;
  ValueTransposer<Spec, Memory> transposer_;
  float key_scale_ = 1.0f;  // scale of the work tile's keys
  bool has_issued_ = false;
  int32 warp_;
  Rotator tile_rotator_;
  // With many rows the angles are computed again each time, because registers are scarce.
  AngleStorage<RowAngles<Spec, kIsPrefill>, !kIsPrefill> angles_;
};

}  // namespace lazyrope
