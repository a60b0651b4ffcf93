// The warp that brings a CTA its items, and finds where their blocks lie, a window of blocks at a
// time, ahead of all who use them.
#pragma once

#include "family/sm90a/tile_memory.cuh"

namespace lazyrope {

template <class Memory>
class BlockFinder {
  using Table = typename Memory::Table;
  static constexpr int kItemChunks = sizeof(Item) / sizeof(Chunk);

 public:
  LAZYROPE_DEVICE BlockFinder(const AttendParams& params, Memory memory)
      : params_(params),
        memory_(memory),
        items_(memory.at + Memory::kItemBarriers),
        windows_(memory.at + Memory::kWindowBarriers) {}

  // All threads, before anything else: the CTA's first item is on its way while they get ready.
  LAZYROPE_DEVICE static void prefetch_item(const AttendParams& params) {
    constexpr int32 kLineBytes = 128;
    const auto* item = reinterpret_cast<const uint8*>(params.work.items + block_index());
    if (thread_index() < static_cast<int32>(sizeof(Item)) / kLineBytes)
      prefetch_global_l2(item + thread_index() * kLineBytes);
  }

  LAZYROPE_DEVICE void run() {
    int32 index = block_index();
    Chunk ahead = load(index);
    while (index >= 0) {
      const ItemPtr item = hand_out(ahead);
      if (item.extent().num_rows == 0) return;
      index = item.keys().next;
      if (index >= 0) ahead = load(index);
      const bool has_blocks = item.extent().num_blocks > 0;
      if (has_blocks) windows_.wait(0);
      if (has_blocks) find_blocks(item);
    }
  }

 private:
  // The lane's part of an item.
  LAZYROPE_DEVICE Chunk load(int32 index) const {
    const auto* from = reinterpret_cast<const Chunk*>(params_.work.items + index);
    return ld_global_nc(from + lane_index() % kItemChunks);
  }

  LAZYROPE_DEVICE ItemPtr hand_out(const Chunk& part) {
    items_.wait(item_.at);
    const ItemPtr item = memory_.item(item_.at);
    if (lane_index() < kItemChunks) item.store(lane_index(), part);
    items_.pass(item_.at);
    item_.advance();
    return item;
  }

  // The item has brought the pages of the first blocks; window 0 is empty.
  LAZYROPE_DEVICE void find_blocks(ItemPtr item) {
    const Table table = memory_.table(params_.step, item);
    const int32 num_blocks = item.extent().num_blocks;
    const int32 known = table.seed(item.start());
    const bool is_known = known == smaller(Table::kWindow, num_blocks);
    if (is_known) windows_.pass(0);
    if (known == num_blocks) return;
    const int32 page = table.resolve_ahead(0, known, table.look_up(0));
    if (is_known) {
      bar_warp_sync();  // the next search begins where this one ended
    } else {
      table.place(0, known, page);
      windows_.pass(0);
    }
#pragma unroll 1
    for (int32 window = 1; window * Table::kWindow < num_blocks; ++window) find(table, window);
  }

  LAZYROPE_DEVICE void find(const Table& table, int32 window) {
    windows_.wait(window % Memory::kWindows);
    const int32 first = window * Table::kWindow;
    table.place(window, first, table.resolve_ahead(window, first, table.look_up(window)));
    windows_.pass(window % Memory::kWindows);
  }

  const AttendParams& params_;
  Memory memory_;
  FillSide items_;
  FillSide windows_;
  RingPlace<Memory::kItems> item_;
};

}  // namespace lazyrope
