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
  static constexpr int kRunOctets = kRunSlots / kOctetSlots;
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
    const int32 known = table.seed(item.start());
    bar_warp_sync();
#pragma unroll 1
    for (int32 block = 0; block <= num_blocks; ++block) {
      if (block < num_blocks) {
        if (block > 0 && block % Table::kWindow == 0) open_window(table, block / Table::kWindow);
        bring_keys(table, block, kv_head);
        look_ahead(table, block, num_blocks, known);
      }
      if (block > 0) bring_values(table, block - 1, kv_head);
    }
  }

  // Window 0, of which the item has brought some blocks, or all.
  LAZYROPE_DEVICE void finish_first_window(const Table& table, int32 num_blocks, int32 known) {
    const bool is_known = known == smaller(Table::kWindow, num_blocks);
    if (is_known) windows_.pass(0);
    if (known < num_blocks) {
      page_ = table.resolve_ahead(0, known, table.look_up(0));
      if (!is_known) table.place(0, known, page_);
      bar_warp_sync();
    }
    if (!is_known) windows_.pass(0);
  }

  // In the course of each window the next is found, and its pages are asked for.
  LAZYROPE_DEVICE void look_ahead(const Table& table, int32 block, int32 num_blocks, int32 known) {
    if (block == 0) finish_first_window(table, num_blocks, known);
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
    copy_octets(params_.maps.keys, tile, table, block, kv_head, keys_.given(key_.at),
                [&](int32 octet) { return any_valid(info, octet) ? kWhole : kNone; });
    key_.advance();
  }

  // Slots outside the segment are zero: a weight of zero would not hide what they hold (0 x NaN).
  LAZYROPE_DEVICE void bring_values(const Table& table, int32 block, int32 kv_head) {
    const SharedPtr tile = expect(values_, memory_.values(value_.at), value_.at);
    const SharedPtr barrier = values_.given(value_.at);
    const BlockInfo info = table.info(block);
    copy_octets(params_.maps.values, tile, table, block, kv_head, barrier, [&](int32 octet) {
      return all_valid(info, octet) ? kWhole : any_valid(info, octet) ? kByRows : kNone;
    });
    const int32 first = info.begin / kOctetSlots;
    const int32 last = (info.end - 1) / kOctetSlots;
#pragma unroll 1
    for (int32 octet = first; octet <= last; octet += larger(last - first, 1))
      if (!all_valid(info, octet)) copy_rows(tile, table, block, octet, kv_head, info, barrier);
    value_.advance();
  }

  LAZYROPE_DEVICE static SharedPtr expect(FillSide& side, SharedPtr tile, int32 place) {
    side.wait(place);
    if (lane_index() == 0) mbarrier_arrive_expect_tx(side.given(place), Memory::kBlockBytes);
    bar_warp_sync();
    return tile;
  }

  LAZYROPE_DEVICE static bool any_valid(const BlockInfo& info, int32 octet) {
    return (octet + 1) * kOctetSlots > info.begin && octet * kOctetSlots < info.end;
  }
  LAZYROPE_DEVICE static bool all_valid(const BlockInfo& info, int32 octet) {
    return octet * kOctetSlots >= info.begin && (octet + 1) * kOctetSlots <= info.end;
  }

  // How an octet is copied: as it is, as zeros, or elsewhere.
  enum Way { kWhole, kNone, kByRows };

  // One lane for the warp: what it gives each copy is then the same for all lanes, as the hardware
  // takes it; copies by several lanes are made one after the other, each five times as slow.
  template <class WayOf>
  LAZYROPE_DEVICE static void copy_octets(const TensorMap& map, SharedPtr tile, const Table& table,
                                          int32 block, int32 kv_head, SharedPtr barrier,
                                          const WayOf& way_of) {
    RunPlace runs[kOctets / kRunOctets];
#pragma unroll
    for (int32 run = 0; run < kOctets / kRunOctets; ++run) runs[run] = table.run(block, run);
    if (elect_sync()) {
#pragma unroll
      for (int32 octet = 0; octet < kOctets; ++octet) {
        const RunPlace& place = runs[octet / kRunOctets];
        const Way way = way_of(octet);
        const int32 at[5] = {0, place.slot + octet % kRunOctets * kOctetSlots, 0,
                             way == kWhole ? place.page : kNowhere, kv_head};
        if (way != kByRows)
          cp_async_bulk_tensor_load(tile + octet * Tile::kOctetBytes, map, at, barrier);
      }
    }
    bar_warp_sync();
  }

  // The warp: an octet of which some slots are valid, row by row.
  LAZYROPE_DEVICE void copy_rows(SharedPtr tile, const Table& table, int32 block, int32 octet,
                                 int32 kv_head, const BlockInfo& info, SharedPtr barrier) const {
    const RunPlace place = table.run(block, octet / kRunOctets);
    const int32 first_slot = place.slot + octet % kRunOctets * kOctetSlots;
#pragma unroll 1
    for (int32 i = lane_index(); i < kOctetSlots * Tile::kPanels; i += kWarpThreads) {
      const int32 row = i % kOctetSlots;
      const int32 panel = i / kOctetSlots;
      const int32 slot = octet * kOctetSlots + row;
      const bool exists = slot >= info.begin && slot < info.end;
      const int32 at[5] = {0, first_slot + row, panel, exists ? place.page : kNowhere, kv_head};
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
