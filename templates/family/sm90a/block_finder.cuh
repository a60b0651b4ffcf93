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
  // `first`: what first_item() has given the lane.
  LAZYROPE_DEVICE BlockFinder(const AttendParams& params, Memory memory, const Chunk& first)
      : params_(params),
        memory_(memory),
        items_(memory.at + Memory::kItemBarriers),
        windows_(memory.at + Memory::kWindowBarriers),
        ahead_(first) {}

  // The lane's part of the CTA's first item, before anything else: it is on its way while the CTA
  // gets ready.
  LAZYROPE_DEVICE static Chunk first_item(const AttendParams& params) {
    return load(params, block_index());
  }

  LAZYROPE_DEVICE void run() {
    int32 next = 0;
    while (next != kNoItem) {
      const int32 place = item_.at;
      if constexpr (kHasQueue) {
        if (next < kNoItem) ahead_ = take(-next);
      }
      const ItemPtr item = hand_out(ahead_);
      if (item.extent().num_rows == 0) return;
      next = item.keys().next;
      if (next >= 0) ahead_ = load(params_, next);
      if (item.extent().num_blocks > 0) find_blocks(item, place);
    }
  }

 private:
  static constexpr bool kHasQueue = Memory::kHasManyRows;

  // An item of a queue, once there is room for it; an empty one behind the last. Each CTA finds the
  // queue empty once, and its first item it has not taken: so the counter is back at 0 for the next
  // launch.
  LAZYROPE_DEVICE Chunk take(int32 num_items) const {
    items_.look(item_.at);
    uint32 taken = 0;
    if (lane_index() == 0)
      taken = atom_relaxed_gpu_inc(params_.work.counters, static_cast<uint32>(num_items) - 1);
    const int32 index = params_.work.num_ctas + static_cast<int32>(shfl_sync_idx(taken, 0));
    return index < num_items ? load(params_, index) : Chunk{};
  }

  LAZYROPE_DEVICE static Chunk load(const AttendParams& params, int32 index) {
    const auto* from = reinterpret_cast<const Chunk*>(params.work.items + index);
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

  // The first window has the blocks whose pages the item has brought.
  LAZYROPE_DEVICE void find_blocks(ItemPtr item, int32 place) {
    const ItemStart start = item.start();
    const int32 known = memory_.table(params_.step, item).count_known(start);
    const int32 first = (window_.at + 1) * Table::kWindow - known;
    const Table table = memory_.table(params_.step, item, first);
    seed(table, start, known, place, first);
    if (known == item.extent().num_blocks) return;
    typename Table::Lookup lookup = table.look_up_first();
    const int32 end = first + item.extent().num_blocks;
#pragma unroll 1
    for (int32 block = first + known; block < end; block += Table::kWindow)
      find(table, block, lookup);
  }

  LAZYROPE_DEVICE void seed(const Table& table, const ItemStart& start, int32 known, int32 place,
                            int32 first) {
    windows_.wait(window_.at);
    table.seed(start, known);
    if (lane_index() == 0) st_shared(memory_.first_block(place), first);
    windows_.pass(window_.at);
    window_.advance();
  }

  // A window from its first block on, asked for ahead.
  LAZYROPE_DEVICE void find(const Table& table, int32 block, typename Table::Lookup& lookup) {
    const int32 window = block / Table::kWindow;
    windows_.wait(window_.at);
    table.place(window, block, table.resolve_ahead(window, block, lookup));
    windows_.pass(window_.at);
    window_.advance();
  }

  const AttendParams& params_;
  Memory memory_;
  FillSide items_;
  FillSide windows_;
  RingPlace<Memory::kItems> item_;
  RingPlace<Memory::kWindows> window_;
  Chunk ahead_;  // of the next item
};

}  // namespace lazyrope
