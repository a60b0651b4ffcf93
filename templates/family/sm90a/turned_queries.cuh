// The queries of an item, turned for one document after the other, as those who compute on them see
// them: turned ahead by helpers (family/sm90a/query_turner.cuh), or by the warpgroup itself as it
// comes to a document.
//
// Helpers take no time from those who compute, but want room for queries twice. Where rows are long
// that room is worth more as longer blocks: a warpgroup that turns its queries leaves products to
// the other meanwhile.
#pragma once

#include "family/sm90a/tile_memory.cuh"
#include "isa/bulk_copy.cuh"
#include "ops/query_rows.cuh"
#include "ops/rotate.cuh"

namespace lazyrope {

// By helpers, who go through the same documents.
template <class Memory>
class TurnedQueries {
 public:
  LAZYROPE_DEVICE TurnedQueries(const AttendParams&, Memory memory)
      : memory_(memory), turned_(memory.at + Memory::kTurnedBarriers) {}

  // For the first document of the item in `place`.
  LAZYROPE_DEVICE void begin(int32) { turned_.wait(turn_.at); }
  // For the next, whose base is given. Products with the queries before have been waited for.
  LAZYROPE_DEVICE void go_on(int32) {
    leave();
    turned_.wait(turn_.at);
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

// By each warpgroup for its 64 rows, of which each warp turns 16 where they have been brought.
template <class Spec, class Memory>
class OwnQueries {
  static constexpr int kGroupRows = 64;
  static constexpr int kWarpRows = 16;
  using Team = typename Memory::ConsumerGroups;
  using Tile = typename Memory::Tile;

 public:
  LAZYROPE_DEVICE OwnQueries(const AttendParams& params, Memory memory)
      : params_(params), memory_(memory) {}

  LAZYROPE_DEVICE void begin(int32 item_place) {
    Team::sync();  // nobody's products need the queries of the item before
    item_place_ = item_place;
    copy_originals();
    copy_row_positions<Spec, Team, kGroupRows>(
        positions() + first_row() * 4, params_.step.positions, item(), first_row(),
        [](SharedPtr to, const int32* from) { cp_async_ca_4(to, from); });
    cp_async_commit_group();
    cp_async_wait_group<0>();
    Team::sync();
    turn(item().start().base);
    Team::sync();
  }
  LAZYROPE_DEVICE void go_on(int32 base) {
    if constexpr (Spec::Pairing::kUnits > 0) {
      Team::sync();  // nobody's products need the queries as they are
      copy_originals();
      cp_async_commit_group();
      cp_async_wait_group<0>();
      bar_warp_sync();
      turn(base);
      Team::sync();
    }
  }
  LAZYROPE_DEVICE void leave() const {}

  LAZYROPE_DEVICE SharedPtr tile() const { return memory_.turned(0); }

 private:
  // Of tokens with many rows a lane has few.
  using Angles = typename RowAngles<Spec, (Spec::kGroupSize < 4)>::Type;

  LAZYROPE_DEVICE ItemPtr item() const { return memory_.item(item_place_); }
  LAZYROPE_DEVICE SharedPtr positions() const { return memory_.positions(item_place_); }
  // Of the warpgroup.
  LAZYROPE_DEVICE static int32 first_row() { return Team::team() * kGroupRows; }

  // Of the warp.
  struct Rows {
    int32 first;
    int32 count;
  };
  LAZYROPE_DEVICE Rows rows() const {
    static_assert(Team::size() == kGroupRows / kWarpRows * kWarpThreads);
    const int32 first = first_row() + Team::rank() / kWarpThreads * kWarpRows;
    return {first, larger(smaller(item().extent().num_rows - first, kWarpRows), 0)};
  }

  // Part of the caller's next group of asynchronous copies.
  LAZYROPE_DEVICE void copy_originals() const {
    const auto [first, count] = rows();
    copy_query_rows_by_warp<Spec, Tile, kWarpRows>(tile(), params_.q, item().rows(), first, count,
                                                   first);
  }
  LAZYROPE_DEVICE void turn(int32 base) const {
    const auto [first, count] = rows();
    const RowsOf<Tile> turned(tile(), first);
    rotate_rows<Spec, 2, kRowAlignment<Spec>>(turned, turned, positions() + first * 4, count,
                                              item().rows().first_row + first, base, Angles());
    fence_proxy_async();
  }

  const AttendParams& params_;
  Memory memory_;
  int32 item_place_ = 0;
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
