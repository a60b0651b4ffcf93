// The warp that brings a CTA its items, and the keys and values of their blocks.
#pragma once

#include "family/sm90a/tile_memory.cuh"
#include "isa/tensor_copy.cuh"

namespace lazyrope {

template <class Memory>
class KvProducer {
  using Tile = typename Memory::Tile;
  using Table = typename Memory::Table;
  static constexpr int kOctets = Memory::kKeys / kOctetSlots;
  static constexpr int kItemChunks = sizeof(Item) / sizeof(Chunk);
  static constexpr int32 kNowhere = -1;  // a page that is not there: its slots are zeros

 public:
  LAZYROPE_DEVICE KvProducer(const TmaAttendParams& params, Memory memory)
      : params_(params),
        memory_(memory),
        items_(memory.at + Memory::kItemBarriers),
        windows_(memory.at + Memory::kWindowBarriers),
        keys_(memory.at + Memory::kKeyBarriers),
        values_(memory.at + Memory::kValueBarriers) {}

  LAZYROPE_DEVICE void run() {
    prefetch_maps();
    int32 index = block_index();
    Chunk ahead = load(index);
    while (index >= 0) {
      const ItemPtr item = hand_out(ahead);
      if (item.extent().num_rows == 0) return;
      index = item.keys().next;
      if (index >= 0) ahead = load(index);
      bring(item);
    }
  }

 private:
  LAZYROPE_DEVICE void prefetch_maps() const {
    if (lane_index() == 0) {
      prefetch_tensormap(params_.maps.keys);
      prefetch_tensormap(params_.maps.values);
      prefetch_tensormap(params_.maps.value_rows);
    }
  }

  // The lane's part of an item.
  LAZYROPE_DEVICE Chunk load(int32 index) const {
    const auto* from = reinterpret_cast<const Chunk*>(params_.attend.work.items + index);
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

  // Keys go one block ahead of values.
  LAZYROPE_DEVICE void bring(ItemPtr item) {
    const int32 num_blocks = item.extent().num_blocks;
    if (num_blocks == 0) return;
    const Table table = memory_.table(params_.attend.step, item);
    const int32 kv_head = item.rows().kv_head;
    windows_.wait(0);
    int32 known = table.seed(item.start());
    bar_warp_sync();
    bring_keys(table, 0, kv_head);
    known = finish_window(table, known, num_blocks);
#pragma unroll 1
    for (int32 block = 1; block < num_blocks; ++block) {
      if (block % Table::kWindow == 0) open_window(table, block / Table::kWindow);
      bring_keys(table, block, kv_head);
      look_ahead(table, block, num_blocks);
      bring_values(table, block - 1, kv_head);
    }
    bring_values(table, num_blocks - 1, kv_head);
  }

  // Window 0, of which the item has brought some blocks, or all.
  LAZYROPE_DEVICE int32 finish_window(const Table& table, int32 known, int32 num_blocks) {
    const bool is_known = known == smaller(Table::kWindow, num_blocks);
    if (is_known) windows_.pass(0);
    if (known < num_blocks) {
      page_ = table.resolve_ahead(0, known, table.look_up(0));
      if (!is_known) table.place(0, known, page_);
      bar_warp_sync();
    }
    if (!is_known) windows_.pass(0);
    return known;
  }

  // In the course of each window the next is found, and its pages are asked for.
  LAZYROPE_DEVICE void look_ahead(const Table& table, int32 block, int32 num_blocks) {
    const int32 next = block / Table::kWindow + 1;
    if (next * Table::kWindow >= num_blocks) return;
    if (block % Table::kWindow == kLookUp) lookup_ = table.look_up(next);
    if (block % Table::kWindow == kFind) {
      windows_.wait(next % Memory::kWindows);
      page_ = table.resolve_ahead(next, next * Table::kWindow, lookup_);
    }
  }
  LAZYROPE_DEVICE void open_window(const Table& table, int32 window) const {
    table.place(window, window * Table::kWindow, page_);
    windows_.pass(window % Memory::kWindows);
  }

  LAZYROPE_DEVICE void bring_keys(const Table& table, int32 block, int32 kv_head) {
    const SharedPtr tile = expect(keys_, memory_.keys(key_.at), key_.at);
    const BlockInfo info = table.info(block);
    for_octets([&](int32 octet) {
      copy_octet(params_.maps.keys, tile, table, block, octet, kv_head, any_valid(info, octet),
                 keys_.given(key_.at));
    });
    key_.advance();
  }

  // Slots outside the segment are zero: a weight of zero would not hide what they hold (0 x NaN).
  LAZYROPE_DEVICE void bring_values(const Table& table, int32 block, int32 kv_head) {
    const SharedPtr tile = expect(values_, memory_.values(value_.at), value_.at);
    const SharedPtr barrier = values_.given(value_.at);
    const BlockInfo info = table.info(block);
    for_octets([&](int32 octet) {
      if (all_valid(info, octet) || !any_valid(info, octet))
        copy_octet(params_.maps.values, tile, table, block, octet, kv_head,
                   any_valid(info, octet), barrier);
    });
    const int32 first = info.begin / kOctetSlots;
    const int32 last = (info.end - 1) / kOctetSlots;
    if (!all_valid(info, first)) copy_rows(tile, table, block, first, kv_head, info, barrier);
    if (last != first && !all_valid(info, last))
      copy_rows(tile, table, block, last, kv_head, info, barrier);
    value_.advance();
  }

  LAZYROPE_DEVICE static SharedPtr expect(FillSide& side, SharedPtr tile, int32 place) {
    side.wait(place);
    if (lane_index() == 0) mbarrier_arrive_expect_tx(side.given(place), Memory::kBlockBytes);
    bar_warp_sync();
    return tile;
  }

  template <class Visit>
  LAZYROPE_DEVICE static void for_octets(const Visit& visit) {
#pragma unroll
    for (int32 first = 0; first < kOctets; first += kWarpThreads)
      if (kOctets >= first + kWarpThreads || lane_index() < kOctets - first)
        visit(first + lane_index());
  }

  LAZYROPE_DEVICE static bool any_valid(const BlockInfo& info, int32 octet) {
    return (octet + 1) * kOctetSlots > info.begin && octet * kOctetSlots < info.end;
  }
  LAZYROPE_DEVICE static bool all_valid(const BlockInfo& info, int32 octet) {
    return octet * kOctetSlots >= info.begin && (octet + 1) * kOctetSlots <= info.end;
  }

  LAZYROPE_DEVICE static RunPlace place_of(const Table& table, int32 block, int32 octet) {
    constexpr int32 kRunOctets = kRunSlots / kOctetSlots;
    RunPlace place = table.run(block, octet / kRunOctets);
    place.slot += octet % kRunOctets * kOctetSlots;
    return place;
  }

  // A lane.
  LAZYROPE_DEVICE static void copy_octet(const TensorMap& map, SharedPtr tile, const Table& table,
                                         int32 block, int32 octet, int32 kv_head, bool exists,
                                         SharedPtr barrier) {
    const RunPlace place = place_of(table, block, octet);
    const int32 at[5] = {0, place.slot, 0, exists ? place.page : kNowhere, kv_head};
    cp_async_bulk_tensor_load(tile + octet * Tile::kOctetBytes, map, at, barrier);
  }

  // The warp: an octet of which some slots are valid, row by row.
  LAZYROPE_DEVICE void copy_rows(SharedPtr tile, const Table& table, int32 block, int32 octet,
                                 int32 kv_head, const BlockInfo& info, SharedPtr barrier) const {
    const RunPlace place = place_of(table, block, octet);
#pragma unroll 1
    for (int32 i = lane_index(); i < kOctetSlots * Tile::kPanels; i += kWarpThreads) {
      const int32 row = i % kOctetSlots;
      const int32 panel = i / kOctetSlots;
      const int32 slot = octet * kOctetSlots + row;
      const bool exists = slot >= info.begin && slot < info.end;
      const int32 at[5] = {0, place.slot + row, panel, exists ? place.page : kNowhere, kv_head};
      cp_async_bulk_tensor_load(
          tile + (octet * Tile::kOctetBytes + panel * Tile::kAtomBytes + row * Tile::kPanelBytes),
          params_.maps.value_rows, at, barrier);
    }
  }

  // Where in a window the next is looked up, and found.
  static constexpr int32 kLookUp = smaller(1, Table::kWindow - 1);
  static constexpr int32 kFind = Table::kWindow - 1;
  static_assert(kFind > kLookUp);

  const TmaAttendParams& params_;
  Memory memory_;
  FillSide items_;
  FillSide windows_;
  FillSide keys_;
  FillSide values_;
  RingPlace<Memory::kItems> item_;
  RingPlace<Memory::kStages> key_;
  RingPlace<Memory::kStages> value_;
  typename Table::Lookup lookup_{};
  int32 page_ = 0;
};

}  // namespace lazyrope
