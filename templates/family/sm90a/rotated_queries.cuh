// The queries of a work tile, turned for one document after the other, as those who compute on them
// see them: turned ahead by helpers (family/sm90a/query_rotator.cuh), or by the warpgroup itself as
// it comes to a document.
//
// Helpers take no time from those who compute, but want room for queries twice or thrice. Where
// rows are long that room is worth more as longer blocks: a warpgroup that turns its queries leaves
// products to the other meanwhile.
#pragma once

#include "family/sm90a/tile_memory.cuh"
#include "isa/bulk_copy.cuh"
#include "ops/query_rows.cuh"
#include "ops/rotate_tile.cuh"

namespace lazyrope {

// By helpers, for the same documents.
template <class Memory>
class RotatedQueries {
 public:
  LAZYROPE_DEVICE RotatedQueries(const AttendParams&, Memory memory)
      : memory_(memory), rotated_(memory.at + Memory::kRotatedBarriers) {}

  // For the first document of the work tile in `stage`.
  LAZYROPE_DEVICE void begin(int32) { wait_for_stage(); }
  // For the next. Products with the queries before have been waited for.
  LAZYROPE_DEVICE void next_document() {
    if constexpr (Memory::kHasRotation) {
      finish();
      wait_for_stage();
    }
  }
  // All of the work tile's products have been waited for.
  LAZYROPE_DEVICE void finish() {
    rotated_.release(stage_.index);
    stage_.advance();
  }

  LAZYROPE_DEVICE SharedPtr tile() const { return memory_.rotated(stage_.index); }
  // For products, from the row on that lies so many bytes behind the first.
  LAZYROPE_DEVICE SharedDescriptor columns(int32 bytes) const {
    return memory_.rotated_columns(stage_.index, bytes);
  }

 private:
  // Who has been told by the document's first keys passes places without having waited for them.
  LAZYROPE_DEVICE void wait_for_stage() {
    if constexpr (!Memory::kKeysSignalQueries) rotated_.wait(stage_.index);
  }

  Memory memory_;
  PipelineConsumer rotated_;
  PipelineStage<Memory::kRotatedStages> stage_;
};

// By each warpgroup for its 64 rows, of which each warp has 16. What is common to both ways.
template <class Spec, class Memory>
class WarpgroupRows {
  static constexpr int kGroupRows = 64;
  static constexpr int kWarpRows = 16;

 public:
  using Team = typename Memory::ConsumerGroups;
  using Tile = typename Memory::QueryTile;
  using Rotation = TileRotation<Spec>;

  LAZYROPE_DEVICE WarpgroupRows(const AttendParams& params, Memory memory)
      : params_(params), memory_(memory) {
    static_assert(Team::size() == kGroupRows / kWarpRows * kWarpThreads);
  }

  // Brings those of a work tile, and their positions.
  LAZYROPE_DEVICE void begin(int32 work_tile_stage) {
    Team::sync();  // nobody's products need the queries of the work tile before
    work_tile_stage_ = work_tile_stage;
    copy_queries();
    copy_positions();
    cp_async_commit_group();
    cp_async_wait_group<0>();
    scale_unrotated();
    Team::sync();
  }

  LAZYROPE_DEVICE WorkTilePtr work_tile() const { return memory_.work_tile(work_tile_stage_); }
  LAZYROPE_DEVICE SharedPtr tile() const { return memory_.rotated(0); }
  LAZYROPE_DEVICE SharedDescriptor columns(int32 bytes) const {
    return memory_.rotated_columns(0, bytes);
  }

  // The warp's rows, in their place: each by its own angle.
  template <class Angles>
  LAZYROPE_DEVICE void rotate(int32 base, const Angles& angles) const {
    const int32 first = first_row();
    const SharedPtr positions = memory_.positions(work_tile_stage_) + first * 4;
    rotate_rows<Spec, 4>(rows(), rows(), positions, kWarpRows, work_tile().rows().first_row + first,
                         base, angles, scale());
    fence_proxy_async();
  }
  // The same by the angle that lies between documents.
  LAZYROPE_DEVICE void rotate_by(const Rotation& rotation) const {
    const TileRotator<Rotation, RowsOf<Tile>, RowsOf<Tile>> rotator(rows(), rows());
    rotator.template rotate<kWarpRows, 2>(rotation);
    fence_proxy_async();
  }

  // Their bytes, kept in global memory.
  LAZYROPE_DEVICE void save() const {
    bar_warp_sync();
    for_each_chunk(
        [](SharedPtr chunk, Chunk* saved) { st_global(saved, ld_shared<Chunk>(chunk)); });
    fence_proxy_async_global();
  }
  // There again. The warp meets before another lane reads them: as it passes keys.
  LAZYROPE_DEVICE void restore() const {
    bar_warp_sync();
    for_each_chunk([](SharedPtr chunk, Chunk* saved) { st_shared(chunk, ld_global(saved)); });
  }
  // Asks for them. Each of a warpgroup's warps does.
  LAZYROPE_DEVICE void load_saved(SharedPtr barrier) const {
    const int32 first = warp() * kWarpBytes;
    if (elect_sync()) mbarrier_arrive_expect_tx(barrier, kWarpBytes);
    if (elect_sync())
      cp_async_bulk_shared_global(tile() + first, saved_queries() + first, kWarpBytes, barrier);
  }

 private:
  static constexpr int32 kWarpBytes = Tile::bytes(kWarpRows);

  LAZYROPE_DEVICE float scale() const {
    return Memory::query_scale(params_, Memory::key_scale_of(params_, work_tile()));
  }
  LAZYROPE_DEVICE static int32 warp() { return Memory::Consumers::rank() / kWarpThreads; }
  // Of the warp.
  LAZYROPE_DEVICE static int32 first_row() { return warp() * kWarpRows; }
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
    for_each_query_chunk<Spec, Tile, kWarpRows>(
        tile(), params_.q, work_tile.rows(), first, work_tile.extent().num_rows - first, first,
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
  // Queries that no angle turns are as products read them then.
  LAZYROPE_DEVICE void scale_unrotated() const {
    if constexpr (Memory::kScalesQueries) {
      bar_warp_sync();
      copy_unrotated<Spec>(rows(), rows(), kWarpRows, scale());
    }
    if (!Memory::kHasRotation) fence_proxy_async();
  }

  const AttendParams& params_;
  Memory memory_;
  int32 work_tile_stage_ = 0;
};

// The first document's by the angles of rows, from q; those of documents behind it by the angle
// that lies between, which helpers find, from what was the first one's, which is kept.
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
  // For the next document: asks for what is kept. Products with the queries before have been waited
  // for; but scores may be made once more, by a warp alone, for which it turns its rows back.
  LAZYROPE_DEVICE void prefetch() const {
    Rows::Team::sync();  // nobody's products need them as they are
    rows_.load_saved(saved_.wait_barrier(group_));
  }
  // To the next document. The warpgroup meets as it awaits its turn to ask for products.
  LAZYROPE_DEVICE void rotate() {
    finish();
    rotate_loaded(rotation());
  }
  // The warp's rows for the present document, where what is kept has been asked for; then that
  // again.
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
  // What turns them is known by the time that they are there.
  LAZYROPE_DEVICE void rotate_loaded(const typename Rows::Rotation& by) {
    saved_.wait(group_);
    rows_.rotate_by(by);
  }
  // That of the present document; of a work tile's first, by nothing.
  LAZYROPE_DEVICE typename Rows::Rotation rotation() const {
    rotations_.await_phase(stage_.index);
    return read_shared_rotation<typename Rows::Rotation>(memory_.rotation(stage_.index));
  }

  Rows rows_;
  Memory memory_;
  PipelineConsumer rotations_;
  PipelineStage<Memory::kRotationStages> stage_;  // of the present document's
  PipelineConsumer saved_;                        // what is kept, a place a warpgroup
  int32 group_;
};

// By nobody: no angle turns them.
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
