// The warps that turn an item's queries for its next segment, while others compute on the present
// one: in fp32, from the originals, rounded once.
#pragma once

#include "family/sm90a/window_user.cuh"
#include "isa/bulk_copy.cuh"
#include "ops/query_rows.cuh"
#include "ops/rotate.cuh"

namespace lazyrope {

template <class Spec, class Memory>
class QueryTurner {
  using Team = typename Memory::Turners;
  using Table = typename Memory::Table;
  static constexpr int kRows = Memory::kRows;
  static constexpr int kManyRows = 64;
  // Few rows are divided as far as can be.
  static constexpr int kAlignment = kRows >= kManyRows ? kRowAlignment<Spec> : 1;
  static constexpr int kRowsAtOnce = 2;  // that registers suffice for

 public:
  LAZYROPE_DEVICE QueryTurner(const AttendParams& params, Memory memory)
      : params_(params),
        memory_(memory),
        windows_(memory),
        turned_(memory.at + Memory::kTurnedBarriers) {}

  LAZYROPE_DEVICE void run() {
    for_each_item(memory_, [&](ItemPtr item, int32 place, bool) {
      fetch(item, place);
      if (item.extent().num_blocks > 0) turn_for_all(item, place);
    });
  }

 private:
  LAZYROPE_DEVICE void fetch(ItemPtr item, int32 place) const {
    Team::sync();  // nobody turns the rows of the item before any more
    copy_queries(item.rows(), item.extent().num_rows);
    copy_row_positions<Spec, Team, kRows, Memory::kHeadRows>(
        memory_.positions(place), params_.step.positions, item, 0,
        [](SharedPtr to, const int32* from) { cp_async_ca_4(to, from); });
    cp_async_commit_group();
    cp_async_wait_group<0>();
    Team::sync();
  }

  LAZYROPE_DEVICE void copy_queries(const ItemRows& rows, int32 num_rows) const {
#pragma unroll
    for (int head = 0; head < Memory::kHeads; ++head) {
      const int32 to = head * Memory::kHeadRows;
      copy_query_rows<Spec, Team>(memory_.original(), params_.q, rows_of_head(rows, head), 0,
                                  num_rows, to, to + num_rows);
    }
  }

  LAZYROPE_DEVICE void turn_for_all(ItemPtr item, int32 place) {
    const Table table = memory_.table(params_.step, item);
    const ItemExtent extent = item.extent();
    const int32 first = windows_.begin(place);
    const int32 last = first + extent.num_blocks - 1;
    int32 base = 0;
#pragma unroll 1
    for (int32 block = first; block <= last; ++block) {
      if (block > first) {
        windows_.leave(block - 1);
        windows_.reach(block);
      }
      const int32 block_base = table.info(block).base;
      if (block == first || block_base != base) turn(block_base, item, place);
      base = block_base;
    }
    windows_.leave_last(last);
  }

  // What an item has is read again where it is needed: registers are few.
  LAZYROPE_DEVICE void turn(int32 base, ItemPtr item, int32 place) {
    turned_.wait(turn_.at);
    clear_others(item.extent().num_rows);
    rotate(base, item.rows().first_row, item.extent().num_rows, memory_.positions(place));
    turned_.pass(turn_.at);
    turn_.advance();
  }

  // Rows that an item does not have are read all the same, and are zero: what another request left
  // there would change when this one's maxima are raised, and so how it is rounded. So are a row's
  // columns that meet the keys of another head.
  LAZYROPE_DEVICE void clear_others(int32 num_rows) const {
    using Tile = typename Memory::Tile;
    constexpr int32 kHeadChunks = Tile::kChunks / Memory::kHeads;
    const int32 first = Memory::kHeads == 1 ? num_rows * Tile::kChunks : 0;
#pragma unroll 1
    for (int32 i = first + Team::rank(); i < kRows * Tile::kChunks; i += Team::size()) {
      const int32 row = i / Tile::kChunks;
      const int32 chunk = i % Tile::kChunks;
      const bool is_turned =
          row / Memory::kHeadRows == chunk / kHeadChunks && row % Memory::kHeadRows < num_rows;
      if (!is_turned) st_shared(Tile::chunk(memory_.turned(turn_.at), row, chunk), Chunk{});
    }
  }

  // Each warp those of a head, or some of one's. `num_rows`: of each head.
  LAZYROPE_DEVICE void rotate(int32 base, int32 first_row, int32 num_rows,
                              SharedPtr positions) const {
    constexpr int kWarps = Memory::kTurningWarps / Memory::kHeads;  // of a head
    static_assert(kWarps * Memory::kHeads == Memory::kTurningWarps);
    const int32 warp = Team::rank() / kWarpThreads;
    const int32 head = warp / kWarps;
    const int32 share = ceil_div(num_rows, kWarps * kAlignment) * kAlignment;
    const int32 first = warp % kWarps * share;
    const int32 at = head * Memory::kHeadRows + first;
    const RowsOf<typename Memory::Tile> turned(
        memory_.turned(turn_.at) + Memory::columns_of_head(head), at);
    const RowsOf<typename Memory::Original> originals(memory_.original(), at);
    rotate_rows<Spec, kRowsAtOnce, kAlignment>(turned, originals, positions + at * 4,
                                               smaller(num_rows - first, share), first_row + first,
                                               base, angles_);
    fence_proxy_async();
  }

  const AttendParams& params_;
  Memory memory_;
  WindowUser<Memory> windows_;
  FillSide turned_;
  RingPlace<Memory::kTurns> turn_;
  typename RowAngles<Spec, (kRows >= kManyRows)>::Type angles_;
};

}  // namespace lazyrope
