// The queries of an item, turned for one document after the other, as those who compute on them see
// them: turned ahead by helpers (family/sm90a/query_turner.cuh), or by the warpgroup itself as it
// comes to a document.
//
// Helpers take no time from those who compute, but want room for queries twice or thrice. Where
// rows are long that room is worth more as longer blocks: a warpgroup that turns its queries leaves
// products to the other meanwhile.
#pragma once

#include "family/sm90a/tile_memory.cuh"
#include "isa/bulk_copy.cuh"
#include "ops/query_rows.cuh"
#include "ops/turn_together.cuh"

namespace lazyrope {

// By helpers, for the same documents.
template <class Memory>
class TurnedQueries {
 public:
  LAZYROPE_DEVICE TurnedQueries(const AttendParams&, Memory memory)
      : memory_(memory), turned_(memory.at + Memory::kTurnedBarriers) {}

  // For the first document of the item in `place`.
  LAZYROPE_DEVICE void begin(int32) { await(); }
  // For the next. Products with the queries before have been waited for.
  LAZYROPE_DEVICE void go_on() {
    if constexpr (Memory::kQueriesTurn) {
      leave();
      await();
    }
  }
  // All of the item's products have been waited for.
  LAZYROPE_DEVICE void leave() {
    turned_.pass(turn_.at);
    turn_.advance();
  }

  LAZYROPE_DEVICE SharedPtr tile() const { return memory_.turned(turn_.at); }
  // For products, from the row on that lies so many bytes behind the first.
  LAZYROPE_DEVICE SharedDescriptor columns(int32 bytes) const {
    return memory_.turned_columns(turn_.at, bytes);
  }

 private:
  // Who has been told by the document's first keys passes places without having waited for them.
  LAZYROPE_DEVICE void await() {
    if constexpr (!Memory::kKeysTellOfQueries) turned_.wait(turn_.at);
  }

  Memory memory_;
  UseSide turned_;
  RingPlace<Memory::kTurnedPlaces> turn_;
};

// By each warpgroup for its 64 rows, of which each warp has 16. What is common to both ways.
template <class Spec, class Memory>
class OwnRows {
  static constexpr int kGroupRows = 64;
  static constexpr int kWarpRows = 16;

 public:
  using Team = typename Memory::ConsumerGroups;
  using Tile = typename Memory::QueryTile;
  using Rotation = KeptRotation<Spec>;

  LAZYROPE_DEVICE OwnRows(const AttendParams& params, Memory memory)
      : params_(params), memory_(memory) {
    static_assert(Team::size() == kGroupRows / kWarpRows * kWarpThreads);
  }

  // Brings those of an item, and their positions.
  LAZYROPE_DEVICE void begin(int32 item_place) {
    Team::sync();  // nobody's products need the queries of the item before
    item_place_ = item_place;
    copy_queries();
    copy_positions();
    cp_async_commit_group();
    cp_async_wait_group<0>();
    scale_unrotated();
    Team::sync();
  }

  LAZYROPE_DEVICE ItemPtr item() const { return memory_.item(item_place_); }
  LAZYROPE_DEVICE SharedPtr tile() const { return memory_.turned(0); }
  LAZYROPE_DEVICE SharedDescriptor columns(int32 bytes) const {
    return memory_.turned_columns(0, bytes);
  }

  // The warp's rows, in their place: each by its own angle.
  template <class Angles>
  LAZYROPE_DEVICE void rotate(int32 base, const Angles& angles) const {
    const int32 first = first_row();
    const SharedPtr positions = memory_.positions(item_place_) + first * 4;
    rotate_rows<Spec, 4>(rows(), rows(), positions, kWarpRows, item().rows().first_row + first,
                         base, angles, scale());
    fence_proxy_async();
  }
  // The same by the angle that lies between documents.
  LAZYROPE_DEVICE void turn(const Rotation& rotation) const {
    const TogetherTurner<Rotation, RowsOf<Tile>, RowsOf<Tile>> turner(rows(), rows());
    turner.template turn<kWarpRows, 2>(rotation);
    fence_proxy_async();
  }

  // Their bytes, kept in global memory.
  LAZYROPE_DEVICE void keep() const {
    bar_warp_sync();
    for_each_chunk([](SharedPtr place, Chunk* kept) { st_global(kept, ld_shared<Chunk>(place)); });
    fence_proxy_async_global();
  }
  // There again. The warp meets before another lane reads them: as it passes keys.
  LAZYROPE_DEVICE void restore() const {
    bar_warp_sync();
    for_each_chunk([](SharedPtr place, Chunk* kept) { st_shared(place, ld_global(kept)); });
  }
  // Asks for them. Each of a warpgroup's warps does.
  LAZYROPE_DEVICE void bring(SharedPtr barrier) const {
    const int32 first = warp() * kWarpBytes;
    if (elect_sync()) mbarrier_arrive_expect_tx(barrier, kWarpBytes);
    if (elect_sync())
      cp_async_bulk_shared_global(tile() + first, image() + first, kWarpBytes, barrier);
  }

 private:
  static constexpr int32 kWarpBytes = Tile::bytes(kWarpRows);

  LAZYROPE_DEVICE float scale() const {
    return Memory::query_scale(params_, Memory::key_scale_of(params_, item()));
  }
  LAZYROPE_DEVICE static int32 warp() { return Memory::Consumers::rank() / kWarpThreads; }
  // Of the warp.
  LAZYROPE_DEVICE static int32 first_row() { return warp() * kWarpRows; }
  LAZYROPE_DEVICE RowsOf<Tile> rows() const { return {tile(), first_row()}; }
  LAZYROPE_DEVICE uint8* image() const {
    return params_.work.kept + static_cast<int64>(block_index()) * Memory::kTurnedBytes;
  }
  template <class Use>
  LAZYROPE_DEVICE void for_each_chunk(const Use& use) const {
    const int32 first = warp() * kWarpBytes;
#pragma unroll 4
    for (int32 i = first + lane_index() * 16; i < first + kWarpBytes; i += kWarpThreads * 16)
      use(tile() + i, reinterpret_cast<Chunk*>(image() + i));
  }
  LAZYROPE_DEVICE void copy_queries() const {
    const ItemPtr item = this->item();
    const int32 first = first_row();
    for_each_query_chunk<Spec, Tile, kWarpRows>(
        tile(), params_.q, item.rows(), first, item.extent().num_rows - first, first,
        [](SharedPtr place, const uint8* address, bool exists) {
          cp_async_cg_16<true>(place, address, exists ? 16 : 0);
        });
  }
  LAZYROPE_DEVICE void copy_positions() const {
    const int32 first = Team::team() * kGroupRows;
    copy_row_positions<Spec, Team, kGroupRows>(
        memory_.positions(item_place_) + first * 4, params_.step.positions, item(), first,
        [](SharedPtr to, const int32* from) { cp_async_ca_4(to, from); });
  }
  // Queries that no angle turns are as products read them then.
  LAZYROPE_DEVICE void scale_unrotated() const {
    if constexpr (Memory::kScalesQueries) {
      bar_warp_sync();
      copy_unrotated<Spec>(rows(), rows(), kWarpRows, scale());
    }
    if (!Memory::kQueriesTurn) fence_proxy_async();
  }

  const AttendParams& params_;
  Memory memory_;
  int32 item_place_ = 0;
};

// The first document's by the angles of rows, from q; those of documents behind it by the angle
// that lies between, which helpers find, from what was the first one's, which is kept.
template <class Spec, class Memory>
class OwnQueries {
 public:
  LAZYROPE_DEVICE OwnQueries(const AttendParams& params, Memory memory)
      : rows_(params, memory),
        memory_(memory),
        rotations_(memory.at + Memory::kRotationBarriers),
        brought_(memory.at + Memory::kKeptBarriers),
        group_(shfl_sync_idx(Rows::Team::team(), 0)) {}

  LAZYROPE_DEVICE void begin(int32 item_place) {
    rows_.begin(item_place);
    turn_first();
    Rows::Team::sync();
  }
  // For the next document: asks for what is kept. Products with the queries before have been waited
  // for; but scores may be made once more, by a warp alone, for which it turns its rows back.
  LAZYROPE_DEVICE void ask() const {
    Rows::Team::sync();  // nobody's products need them as they are
    rows_.bring(brought_.awaited(group_));
  }
  // To the next document. The warpgroup meets as it awaits its turn to ask for products.
  LAZYROPE_DEVICE void turn() {
    leave();
    turn_brought(rotation());
  }
  // The warp's rows for the present document, where what is kept has been asked for; then that
  // again.
  LAZYROPE_DEVICE void turn_back() const {
    brought_.look(group_);
    rows_.turn(rotation());
    bar_warp_sync();
  }
  LAZYROPE_DEVICE void restore() const { rows_.restore(); }
  LAZYROPE_DEVICE void leave() {
    rotations_.wait(turn_.at);
    rotations_.pass(turn_.at);
    turn_.advance();
  }

  LAZYROPE_DEVICE SharedPtr tile() const { return rows_.tile(); }
  LAZYROPE_DEVICE SharedDescriptor columns(int32 bytes) const { return rows_.columns(bytes); }

 private:
  using Rows = OwnRows<Spec, Memory>;

  LAZYROPE_DEVICE void turn_first() const {
    const RowAngles<Spec, true> angles;
    rows_.rotate(rows_.item().start().base, angles);
    if (!has_one_document<Memory>(rows_.item())) rows_.keep();
  }
  // What turns them is known by the time that they are there.
  LAZYROPE_DEVICE void turn_brought(const typename Rows::Rotation& by) {
    brought_.wait(group_);
    rows_.turn(by);
  }
  // That of the present document; of an item's first, by nothing.
  LAZYROPE_DEVICE typename Rows::Rotation rotation() const {
    rotations_.look(turn_.at);
    return shared_rotation<typename Rows::Rotation>(memory_.rotation(turn_.at));
  }

  Rows rows_;
  Memory memory_;
  UseSide rotations_;
  RingPlace<Memory::kRotationPlaces> turn_;  // of the present document's
  UseSide brought_;                          // what is kept, a place a warpgroup
  int32 group_;
};

// By nobody: no angle turns them.
template <class Spec, class Memory>
class PlainQueries {
 public:
  LAZYROPE_DEVICE PlainQueries(const AttendParams& params, Memory memory) : rows_(params, memory) {}

  LAZYROPE_DEVICE void begin(int32 item_place) { rows_.begin(item_place); }
  LAZYROPE_DEVICE void leave() const {}

  LAZYROPE_DEVICE SharedPtr tile() const { return rows_.tile(); }
  LAZYROPE_DEVICE SharedDescriptor columns(int32 bytes) const { return rows_.columns(bytes); }

 private:
  OwnRows<Spec, Memory> rows_;
};

template <class Spec, class Memory, bool kConsumersTurn, bool kQueriesTurn>
struct QueriesOf {
  using Type = TurnedQueries<Memory>;
};
template <class Spec, class Memory>
struct QueriesOf<Spec, Memory, true, true> {
  using Type = OwnQueries<Spec, Memory>;
};
template <class Spec, class Memory>
struct QueriesOf<Spec, Memory, true, false> {
  using Type = PlainQueries<Spec, Memory>;
};

}  // namespace lazyrope
