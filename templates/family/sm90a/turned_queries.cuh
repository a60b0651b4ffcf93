// The queries of an item, turned for one document after the other, as those who compute on them see
// them: turned ahead by helpers (family/sm90a/query_turner.cuh), or by the warpgroup itself as it
// comes to a document.
//
// Helpers take no time from those who compute, but want room for queries thrice. Where rows are
// long that room is worth more as longer blocks: a warpgroup that turns its queries leaves products
// to the other meanwhile.
#pragma once

#include "family/sm90a/tile_memory.cuh"
#include "isa/bulk_copy.cuh"
#include "ops/query_rows.cuh"
#include "ops/turn_together.cuh"

namespace lazyrope {

// By helpers, who go through the same documents.
template <class Memory>
class TurnedQueries {
 public:
  LAZYROPE_DEVICE TurnedQueries(const AttendParams&, Memory memory)
      : memory_(memory), turned_(memory.at + Memory::kTurnedBarriers) {}

  // For the first document of the item in `place`.
  LAZYROPE_DEVICE void begin(int32) { turned_.wait(turn_.at); }
  // For the next. Products with the queries before have been waited for.
  LAZYROPE_DEVICE void go_on() {
    if constexpr (Memory::kQueriesTurn) {
      leave();
      turned_.wait(turn_.at);
    }
  }
  // All of the item's products have been waited for.
  LAZYROPE_DEVICE void leave() {
    turned_.pass(turn_.at);
    turn_.advance();
  }

  LAZYROPE_DEVICE SharedPtr tile() const { return memory_.turned(turn_.at); }

 private:
  Memory memory_;
  UseSide turned_;
  RingPlace<Memory::kTurns> turn_;
};

// By each warpgroup for its 64 rows, of which each warp has 16. What is common to both ways.
template <class Spec, class Memory>
class OwnRows {
  static constexpr int kGroupRows = 64;
  static constexpr int kWarpRows = 16;

 public:
  using Team = typename Memory::ConsumerGroups;
  using Tile = typename Memory::Tile;

  LAZYROPE_DEVICE OwnRows(const AttendParams& params, Memory memory)
      : params_(params), memory_(memory) {
    static_assert(Team::size() == kGroupRows / kWarpRows * kWarpThreads);
  }

  // Brings those of an item, and their positions.
  LAZYROPE_DEVICE void begin(int32 item_place) {
    Team::sync();  // nobody's products need the queries of the item before
    item_place_ = item_place;
    copy(params_.q, item().rows(), first_row());
    const int32 first = Team::team() * kGroupRows;
    copy_row_positions<Spec, Team, kGroupRows>(
        memory_.positions(item_place_) + first * 4, params_.step.positions, item(), first,
        [](SharedPtr to, const int32* from) { cp_async_ca_4(to, from); });
    wait();
    Team::sync();
  }
  // What is turned for other documents.
  LAZYROPE_DEVICE void keep() const {
    bar_warp_sync();
    visit(kept(), kPacked, 0, [](SharedPtr place, const uint8* address, bool exists) {
      auto* to = reinterpret_cast<Chunk*>(const_cast<uint8*>(address));
      if (exists) st_global(to, ld_shared<Chunk>(place));
    });
    bar_warp_sync();
  }
  // Queries that come turned are that themselves.
  LAZYROPE_DEVICE void bring_kept() const {
    Team::sync();  // nobody's products need the queries as they are
    if constexpr (Spec::kQueryRotated)
      copy(params_.q, item().rows(), first_row());
    else
      copy(kept(), kPacked, 0);
    wait();
  }

  LAZYROPE_DEVICE ItemPtr item() const { return memory_.item(item_place_); }
  LAZYROPE_DEVICE SharedPtr tile() const { return memory_.turned(0); }
  // Of the warp.
  LAZYROPE_DEVICE static int32 first_row() {
    return Team::team() * kGroupRows + Team::rank() / kWarpThreads * kWarpRows;
  }

  // The warp's rows, in their place, where products find them.
  template <class Conversion, class Angles>
  LAZYROPE_DEVICE void rotate(int32 base, const Angles& angles) const {
    const int32 first = first_row();
    const RowsOf<Tile> rows(tile(), first);
    const SharedPtr positions = memory_.positions(item_place_) + first * 4;
    rotate_rows<Spec, 4, Conversion>(rows, rows, positions, kWarpRows,
                                     item().rows().first_row + first, base, angles);
    fence_proxy_async();
  }

 private:
  static constexpr ItemRows kPacked = {0, 0, 0, 1};  // rows that lie one behind the other

  LAZYROPE_DEVICE int32 num_rows() const {
    return larger(smaller(item().extent().num_rows - first_row(), kWarpRows), 0);
  }

  LAZYROPE_DEVICE TokenTensor kept() const {
    constexpr int32 kRowBytes = Memory::kHeadDim * kElementBytes;
    const int32 row = block_index() * Memory::kRows + first_row();
    return {params_.work.kept + static_cast<int64>(row) * kRowBytes, Spec::kGroupSize * kRowBytes,
            kRowBytes};
  }

  template <class Visit>
  LAZYROPE_DEVICE void visit(const TokenTensor& tensor, const ItemRows& rows, int32 first,
                             const Visit& visit) const {
    for_each_query_chunk<Spec, Tile, kWarpRows>(tile(), tensor, rows, first, num_rows(),
                                                first_row(), visit);
  }
  LAZYROPE_DEVICE void copy(const TokenTensor& tensor, const ItemRows& rows, int32 first) const {
    visit(tensor, rows, first, [](SharedPtr place, const uint8* address, bool exists) {
      cp_async_cg_16<true>(place, address, exists ? 16 : 0);
    });
  }
  LAZYROPE_DEVICE static void wait() {
    cp_async_commit_group();
    cp_async_wait_group<0>();
    bar_warp_sync();
  }

  const AttendParams& params_;
  Memory memory_;
  int32 item_place_ = 0;
};

// The first document's by the angles of rows, from q; those of documents behind it by the angle
// that lies between, which helpers find, from what is kept.
template <class Spec, class Memory>
class OwnQueries {
 public:
  LAZYROPE_DEVICE OwnQueries(const AttendParams& params, Memory memory)
      : rows_(params, memory), memory_(memory), rotations_(memory.at + Memory::kRotationBarriers) {}

  LAZYROPE_DEVICE void begin(int32 item_place) {
    rows_.begin(item_place);
    turn_first();
    Rows::Team::sync();
  }
  // The warpgroup meets as it awaits its turn to ask for products.
  LAZYROPE_DEVICE void go_on() {
    if constexpr (Memory::kQueriesTurn) {
      rows_.bring_kept();
      turn_by_shared_angle();
    }
  }
  LAZYROPE_DEVICE void leave() const {}

  LAZYROPE_DEVICE SharedPtr tile() const { return rows_.tile(); }

 private:
  using Rows = OwnRows<Spec, Memory>;

  LAZYROPE_DEVICE void turn_first() {
    if constexpr (!Memory::kQueriesTurn) {
      fence_proxy_async();
    } else if constexpr (Spec::kQueryRotated) {
      turn_by_shared_angle();
    } else {
      const int32 base = rows_.item().start().base;
      // Of tokens with many rows a lane has few.
      const typename RowAngles<Spec, (Spec::kGroupSize < 4)>::Type angles;
      if (has_one_document<Memory>(rows_.item())) {
        rows_.template rotate<ForProducts<Spec>>(base, angles);
      } else {
        rows_.template rotate<ToKeep<Spec>>(base, angles);
        rows_.keep();
        rows_.template rotate<FromKept<Spec>>(0, angle_of<Spec>(0));
      }
    }
  }
  LAZYROPE_DEVICE void turn_by_shared_angle() {
    rotations_.wait(turn_.at);
    rows_.template rotate<FromKept<Spec>>(0, shared_angle<Spec>(memory_.rotation(turn_.at)));
    rotations_.pass(turn_.at);
    turn_.advance();
  }

  Rows rows_;
  Memory memory_;
  UseSide rotations_;
  RingPlace<Memory::kTurns> turn_;
};

template <class Spec, class Memory, bool kConsumersTurn>
struct QueriesOf {
  using Type = TurnedQueries<Memory>;
};
template <class Spec, class Memory>
struct QueriesOf<Spec, Memory, true> {
  using Type = OwnQueries<Spec, Memory>;
};

}  // namespace lazyrope
