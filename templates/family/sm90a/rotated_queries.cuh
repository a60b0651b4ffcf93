// The rotated queries of a work tile, for one document after another, as consumers use them. There
// are three ways:
//   RotatedQueries: helpers rotate ahead (query_rotator.cuh), into one or two stages;
//   SelfRotatedQueries: each warpgroup rotates its own rows when it comes to a document;
//   UnrotatedQueries: there is no RoPE, and each warpgroup loads its own rows.
//
// Helpers cost the consumers no time, but need memory for the original queries and for each stage.
// With a long head_dim this memory is better used for longer blocks. While a warpgroup rotates its
// queries, the other one can use the tensor cores.
//
// Reads: q [tokens, heads, head_dim] and the rows' positions, or stages that helpers fill; saved
// queries [CTAs, kRows, head_dim] in global memory.
// Writes: the tile of rotated queries [kRows, head_dim] in shared memory; saved queries.
//
// Role: every consumer warp has one object. A warpgroup has 64 rows, of which each warp has 16.
// With SelfRotatedQueries and UnrotatedQueries a warpgroup synchronizes by its named barrier, 3 or
// 4 (Team::sync()). SelfRotatedQueries also consumes the rotation pipeline, and waits for its stage
// of the saved pipeline (tile_memory.cuh).
#pragma once

#include "family/sm90a/tile_memory.cuh"
#include "isa/bulk_copy.cuh"
#include "ops/query_rows.cuh"
#include "ops/rotate_tile.cuh"

namespace lazyrope {

// Helpers rotate the queries, for the same documents in the same order.
template <class Memory>
class RotatedQueries {
 public:
  LAZYROPE_DEVICE RotatedQueries(const AttendParams&, Memory memory)
      : memory_(memory), rotated_(memory.at + Memory::kRotatedBarriers) {}

  // Begins the first document of the work tile in the given stage.
  LAZYROPE_DEVICE void begin(int32) { wait_for_stage(); }
  // Goes on to the next document. Call this after products with the present queries have completed.
  LAZYROPE_DEVICE void next_document() {
    if constexpr (Memory::kHasRotation) {
      finish();
      wait_for_stage();
    }
  }
  // Call this after all products of the work tile have completed.
  LAZYROPE_DEVICE void finish() {
    rotated_.release(stage_.index);
    stage_.advance();
  }

  LAZYROPE_DEVICE SharedPtr tile() const { return memory_.rotated(stage_.index); }
  // Returns the wgmma descriptor of the rows that begin `bytes` after the first.
  LAZYROPE_DEVICE SharedDescriptor columns(int32 bytes) const {
    return memory_.rotated_columns(stage_.index, bytes);
  }

 private:
  // If the document's first keys signal the queries, the consumer does not wait here and counts no
  // phases.
  LAZYROPE_DEVICE void wait_for_stage() {
    if constexpr (!Memory::kKeysSignalQueries) rotated_.wait(stage_.index);
  }

  Memory memory_;
  PipelineConsumer rotated_;
  PipelineStage<Memory::kRotatedStages> stage_;
};

// The 64 rows of a warpgroup, of which each warp has 16. SelfRotatedQueries and UnrotatedQueries
// use this class.
template <class Spec, class Memory>
class WarpgroupRows {
  static constexpr int kGroupRows = 64;
  static constexpr int kWarpM = 16;

 public:
  using Team = typename Memory::ConsumerGroups;
  using Tile = typename Memory::QueryTile;
  using Rotation = TileRotation<Spec>;

  LAZYROPE_DEVICE WarpgroupRows(const AttendParams& params, Memory memory)
      : params_(params), memory_(memory) {
    static_assert(Team::size() == kGroupRows / kWarpM * kWarpThreads);
  }

  // Loads a work tile's rows and their positions.
  LAZYROPE_DEVICE void begin(int32 work_tile_stage) {
    Team::sync();  // no product needs the previous work tile's queries
    work_tile_stage_ = work_tile_stage;
    copy_queries();
    copy_positions();
    cp_async_commit_group();
    cp_async_wait_group<0>();
    if (!Memory::kHasRotation) fence_proxy_async();  // without RoPE the queries are complete
    Team::sync();
  }

  LAZYROPE_DEVICE WorkTilePtr work_tile() const { return memory_.work_tile(work_tile_stage_); }
  LAZYROPE_DEVICE SharedPtr tile() const { return memory_.rotated(0); }
  LAZYROPE_DEVICE SharedDescriptor columns(int32 bytes) const {
    return memory_.rotated_columns(0, bytes);
  }

  // Rotates the warp's rows in place, each by its own angle.
  template <class Angles>
  LAZYROPE_DEVICE void rotate(int32 base, const Angles& angles) const {
    const int32 first = first_row();
    const SharedPtr positions = memory_.positions(work_tile_stage_) + first * 4;
    rotate_rows<Spec, 4>(rows(), rows(), positions, kWarpM, work_tile().rows().first_row + first,
                         base, angles, scale());
    fence_proxy_async();
  }
  // Rotates the warp's rows in place, all by the angle between two documents.
  LAZYROPE_DEVICE void rotate_by(const Rotation& rotation) const {
    const TileRotator<Rotation, RowsOf<Tile>, RowsOf<Tile>> rotator(rows(), rows());
    rotator.template rotate<kWarpM, 2>(rotation);
    fence_proxy_async();
  }

  // Copies the warp's rows to global memory.
  LAZYROPE_DEVICE void save() const {
    bar_warp_sync();
    for_each_chunk(
        [](SharedPtr chunk, Chunk* saved) { st_global(saved, ld_shared<Chunk>(chunk)); });
    fence_proxy_async_global();
  }
  // Copies the warp's rows back. Other lanes read them only after release_keys(), which
  // synchronizes the warp.
  LAZYROPE_DEVICE void restore() const {
    bar_warp_sync();
    for_each_chunk([](SharedPtr chunk, Chunk* saved) { st_shared(chunk, ld_global(saved)); });
  }
  // Issues a bulk copy of the warp's saved rows. Each warp of the warpgroup calls this.
  LAZYROPE_DEVICE void load_saved(SharedPtr barrier) const {
    const int32 first = warp() * kWarpBytes;
    if (elect_sync()) mbarrier_arrive_expect_tx(barrier, kWarpBytes);
    if (elect_sync())
      cp_async_bulk_shared_global(tile() + first, saved_queries() + first, kWarpBytes, barrier);
  }

 private:
  static constexpr int32 kWarpBytes = Tile::bytes(kWarpM);

  LAZYROPE_DEVICE auto scale() const {
    return Memory::query_scale(params_, Memory::key_scale_of(params_, work_tile()));
  }
  LAZYROPE_DEVICE static int32 warp() { return Memory::Consumers::rank() / kWarpThreads; }
  // Returns the first row of the warp.
  LAZYROPE_DEVICE static int32 first_row() { return warp() * kWarpM; }
  LAZYROPE_DEVICE RowsOf<Tile> rows() const { return {tile(), first_row()}; }
  LAZYROPE_DEVICE uint8* saved_queries() const {
    return params_.work.saved_queries + static_cast<int64>(block_index()) * Memory::kRotatedBytes;
  }
  template <class Use>
  LAZYROPE_DEVICE void for_each_chunk(const Use& use) const {
    const int32 first = warp() * kWarpBytes;
#pragma unroll 4
    for (int32 i = first + lane_index() * 16; i < first + kWarpBytes; i += kWarpThreads * 16)
      use(tile() + i, reinterpret_cast<Chunk*>(saved_queries() + i));
  }
  LAZYROPE_DEVICE void copy_queries() const {
    const WorkTilePtr work_tile = this->work_tile();
    const int32 first = first_row();
    for_each_query_chunk<Spec, Tile, kWarpM>(
        tile(), params_, work_tile.rows(), first, work_tile.extent().num_rows - first, first,
        [](SharedPtr chunk, const uint8* address, bool exists) {
          cp_async_cg_16<true>(chunk, address, exists ? 16 : 0);
        });
  }
  LAZYROPE_DEVICE void copy_positions() const {
    const int32 first = Team::team() * kGroupRows;
    copy_row_positions<Spec, Team, kGroupRows>(
        memory_.positions(work_tile_stage_) + first * 4, params_.step.positions, work_tile(), first,
        [](SharedPtr to, const int32* from) { cp_async_ca_4(to, from); });
  }

  const AttendParams& params_;
  Memory memory_;
  int32 work_tile_stage_ = 0;
};

// The first document's queries are rotated from q, by the angles of their rows, and saved. Each
// later document's queries are made from the saved ones, by the rotation between the two documents,
// which helpers compute.
template <class Spec, class Memory>
class SelfRotatedQueries {
 public:
  LAZYROPE_DEVICE SelfRotatedQueries(const AttendParams& params, Memory memory)
      : rows_(params, memory),
        memory_(memory),
        rotations_(memory.at + Memory::kRotationBarriers),
        saved_(memory.at + Memory::kSavedBarriers),
        group_(shfl_sync_idx(Rows::Team::team(), 0)) {}

  LAZYROPE_DEVICE void begin(int32 work_tile_stage) {
    rows_.begin(work_tile_stage);
    rotate_first();
    Rows::Team::sync();
  }
  // Begins to load the saved queries for the next document, after products with the present queries
  // have completed. A warp may still compute scores of the present document again: it calls
  // rotate_back() before, and restore() after.
  LAZYROPE_DEVICE void prefetch() const {
    Rows::Team::sync();  // no product needs the present queries
    rows_.load_saved(saved_.wait_barrier(group_));
  }
  // Goes on to the next document. MmaOrder::order_wait() synchronizes the warpgroup before its
  // products read the queries.
  LAZYROPE_DEVICE void rotate() {
    finish();
    rotate_loaded(rotation());
  }
  // Rotates the warp's rows for the present document, after prefetch() has loaded the saved ones.
  // restore() undoes that.
  LAZYROPE_DEVICE void rotate_back() const {
    saved_.await_phase(group_);
    rows_.rotate_by(rotation());
    bar_warp_sync();
  }
  LAZYROPE_DEVICE void restore() const { rows_.restore(); }
  LAZYROPE_DEVICE void finish() {
    rotations_.wait(stage_.index);
    rotations_.release(stage_.index);
    stage_.advance();
  }

  LAZYROPE_DEVICE SharedPtr tile() const { return rows_.tile(); }
  LAZYROPE_DEVICE SharedDescriptor columns(int32 bytes) const { return rows_.columns(bytes); }

 private:
  using Rows = WarpgroupRows<Spec, Memory>;

  LAZYROPE_DEVICE void rotate_first() const {
    const RowAngles<Spec, true> angles;
    rows_.rotate(rows_.work_tile().start().base, angles);
    if (!has_one_document<Memory>(rows_.work_tile())) rows_.save();
  }
  // The caller has read `by` before the saved queries arrive.
  LAZYROPE_DEVICE void rotate_loaded(const typename Rows::Rotation& by) {
    saved_.wait(group_);
    rows_.rotate_by(by);
  }
  // Returns the rotation of the present document. It is a zero angle for a work tile's first
  // document.
  LAZYROPE_DEVICE typename Rows::Rotation rotation() const {
    rotations_.await_phase(stage_.index);
    return read_shared_rotation<typename Rows::Rotation>(memory_.rotation(stage_.index));
  }

  Rows rows_;
  Memory memory_;
  PipelineConsumer rotations_;
  PipelineStage<Memory::kRotationStages> stage_;  // stage of the present document's rotation
  PipelineConsumer saved_;                        // saved queries, one stage for each warpgroup
  int32 group_;
};

// Queries without RoPE.
template <class Spec, class Memory>
class UnrotatedQueries {
 public:
  LAZYROPE_DEVICE UnrotatedQueries(const AttendParams& params, Memory memory)
      : rows_(params, memory) {}

  LAZYROPE_DEVICE void begin(int32 work_tile_stage) { rows_.begin(work_tile_stage); }
  LAZYROPE_DEVICE void finish() const {}

  LAZYROPE_DEVICE SharedPtr tile() const { return rows_.tile(); }
  LAZYROPE_DEVICE SharedDescriptor columns(int32 bytes) const { return rows_.columns(bytes); }

 private:
  WarpgroupRows<Spec, Memory> rows_;
};

template <class Spec, class Memory, bool kConsumersRotate, bool kHasRotation>
struct QueriesFor {
  using Type = RotatedQueries<Memory>;
};
template <class Spec, class Memory>
struct QueriesFor<Spec, Memory, true, true> {
  using Type = SelfRotatedQueries<Spec, Memory>;
};
template <class Spec, class Memory>
struct QueriesFor<Spec, Memory, true, false> {
  using Type = UnrotatedQueries<Spec, Memory>;
};

}  // namespace lazyrope
