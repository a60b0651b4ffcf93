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

  LAZYROPE_DEVICE void begin(int32 place) {
    place_ = place;
    Team::sync();  // nobody reads what the item before has left
    copy_row_positions<Spec, Team, kGroupRows>(
        positions(), params_.step.positions, item(), first_row(),
        [](SharedPtr to, const int32* from) { cp_async_ca_4(to, from); });
    turn(item().start().base);
  }
  LAZYROPE_DEVICE void go_on(int32 base) {
    if constexpr (Spec::Pairing::kUnits > 0) {
      Team::sync();  // nobody's products need the queries as they are
      turn(base);
    }
  }
  LAZYROPE_DEVICE void leave() const {}

  LAZYROPE_DEVICE SharedPtr tile() const { return memory_.turned(0); }

 private:
  // Of tokens with many rows a lane has few.
  using Angles = typename RowAngles<Spec, (Spec::kGroupSize < 4)>::Type;

  LAZYROPE_DEVICE ItemPtr item() const { return memory_.item(place_); }
  LAZYROPE_DEVICE SharedPtr positions() const {
    return memory_.positions(place_) + first_row() * 4;
  }
  // Of the warpgroup.
  LAZYROPE_DEVICE static int32 first_row() { return Team::team() * kGroupRows; }

  LAZYROPE_DEVICE void turn(int32 base) const {
    static_assert(Team::size() == kGroupRows / kWarpRows * kWarpThreads);
    const ItemRows rows = item().rows();
    const int32 num_rows = item().extent().num_rows - first_row();
    copy_query_rows<Spec, Team, Tile>(tile(), params_.q, rows, first_row(), num_rows, first_row(),
                                      first_row() + kGroupRows);
    cp_async_commit_group();
    cp_async_wait_group<0>();
    Team::sync();
    const int32 first = Team::rank() / kWarpThreads * kWarpRows;
    const RowsOf<Tile> turned(tile(), first_row() + first);
    rotate_rows<Spec, 2, kRowAlignment<Spec>>(turned, turned, positions() + first * 4,
                                              larger(smaller(num_rows - first, kWarpRows), 0),
                                              rows.first_row + first_row() + first, base, Angles());
    fence_proxy_async();
    Team::sync();
  }

  const AttendParams& params_;
  Memory memory_;
  int32 place_ = 0;  // of the item
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
