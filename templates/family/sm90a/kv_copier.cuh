// The warp that asks for the keys and values of an item's blocks, straight from their pages.
#pragma once

#include "family/sm90a/tile_memory.cuh"
#include "isa/tensor_copy.cuh"

namespace lazyrope {

template <class Memory>
class KvCopier {
  using Tile = typename Memory::Tile;
  using Table = typename Memory::Table;
  static constexpr int kRuns = Memory::kKeys / kRunSlots;
  static constexpr int kRunBytes = Tile::bytes(kRunSlots);
  static constexpr int32 kNowhere = -2;  // an octet that, with the next, is not there: zeros
  static_assert(kRunSlots == 2 * kOctetSlots);

 public:
  LAZYROPE_DEVICE KvCopier(const TmaAttendParams& params, Memory memory)
      : maps_(params.maps),
        step_(params.attend.step),
        memory_(memory),
        windows_(memory.at + Memory::kWindowBarriers),
        keys_(memory.at + Memory::kKeyBarriers),
        values_(memory.at + Memory::kValueBarriers) {}

  LAZYROPE_DEVICE void run() {
    if (lane_index() == 0) {
      prefetch_tensormap(maps_.keys);
      prefetch_tensormap(maps_.values);
      prefetch_tensormap(maps_.value_rows);
    }
    for_each_item(memory_, [&](ItemPtr item, int32, bool) { copy(item); });
  }

 private:
  // Keys go one block ahead of values.
  LAZYROPE_DEVICE void copy(ItemPtr item) {
    const Table table = memory_.table(step_, item);
    const int32 num_blocks = item.extent().num_blocks;
    kv_head_ = item.rows().kv_head;
    if (num_blocks == 0) return;
#pragma unroll 1
    for (int32 block = 0; block <= num_blocks; ++block) {
      if (block < num_blocks) {
        if (block % Table::kWindow == 0) windows_.wait(Memory::window_of(block));
        copy_keys(table, block);
      }
      if (block == 0) continue;
      copy_values(table, block - 1);
      if (block % Table::kWindow == 0 || block == num_blocks)
        windows_.pass(Memory::window_of(block - 1));
    }
  }

  LAZYROPE_DEVICE void copy_keys(const Table& table, int32 block) {
    expect(keys_, key_.at);
    const BlockInfo info = table.info(block);
    copy_runs(maps_.keys, memory_.keys(key_.at), table, block, keys_.given(key_.at),
              [&](int32 run) { return any_valid(info, run) ? kWhole : kNone; });
    key_.advance();
  }

  // Slots outside the segment are zero: a weight of zero would not hide what they hold (0 x NaN).
  LAZYROPE_DEVICE void copy_values(const Table& table, int32 block) {
    expect(values_, value_.at);
    const SharedPtr tile = memory_.values(value_.at);
    const SharedPtr barrier = values_.given(value_.at);
    const BlockInfo info = table.info(block);
    copy_runs(maps_.values, tile, table, block, barrier, [&](int32 run) {
      return all_valid(info, run) ? kWhole : any_valid(info, run) ? kByRows : kNone;
    });
    const int32 first = info.begin / kRunSlots;
    const int32 last = (info.end - 1) / kRunSlots;
#pragma unroll 1
    for (int32 run = first; run <= last; run += larger(last - first, 1))
      if (!all_valid(info, run)) copy_rows(tile, table.run(block, run), run, info, barrier);
    value_.advance();
  }

  LAZYROPE_DEVICE static void expect(FillSide& side, int32 place) {
    side.wait(place);
    if (lane_index() == 0) mbarrier_arrive_expect_tx(side.given(place), Memory::kBlockBytes);
  }

  LAZYROPE_DEVICE static bool any_valid(const BlockInfo& info, int32 run) {
    return (run + 1) * kRunSlots > info.begin && run * kRunSlots < info.end;
  }
  LAZYROPE_DEVICE static bool all_valid(const BlockInfo& info, int32 run) {
    return run * kRunSlots >= info.begin && (run + 1) * kRunSlots <= info.end;
  }

  // How a run is copied: as it is, as zeros, or elsewhere.
  enum Way { kWhole, kNone, kByRows };

  // One lane for the warp: what it gives each copy is then the same for all lanes, as the hardware
  // takes it; copies by several lanes are made one after the other, each twice as slow.
  template <class WayOf>
  LAZYROPE_DEVICE void copy_runs(const TensorMap& map, SharedPtr tile, const Table& table,
                                 int32 block, SharedPtr barrier, const WayOf& way_of) const {
    RunPlace places[kRuns];
#pragma unroll
    for (int32 run = 0; run < kRuns; ++run) places[run] = table.run(block, run);
    if (elect_sync()) {
#pragma unroll
      for (int32 run = 0; run < kRuns; ++run) {
        const Way way = way_of(run);
        const int32 at[5] = {0, 0, 0, way == kWhole ? octet_of(places[run], 0) : kNowhere,
                             head_of(places[run])};
        if (way != kByRows) load(tile + run * kRunBytes, map, at, barrier);
      }
    }
  }

  // The warp: a run of which some slots are valid.
  LAZYROPE_DEVICE void copy_rows(SharedPtr tile, const RunPlace& place, int32 run,
                                 const BlockInfo& info, SharedPtr barrier) const {
#pragma unroll 1
    for (int32 i = lane_index(); i < kRunSlots * Tile::kPanels; i += kWarpThreads) {
      const int32 slot = i % kRunSlots;
      const int32 panel = i / kRunSlots;
      const int32 row = run * kRunSlots + slot;
      const bool exists = row >= info.begin && row < info.end;
      const int32 at[5] = {0, slot % kOctetSlots, panel, exists ? octet_of(place, slot) : kNowhere,
                           head_of(place)};
      load(tile + Tile::row_of_panel(row, panel), maps_.value_rows, at, barrier);
    }
  }

  LAZYROPE_DEVICE static void load(SharedPtr to, const TensorMap& map, const int32 (&at)[5],
                                   SharedPtr barrier) {
    if constexpr (Memory::kReadsOnce)
      cp_async_bulk_tensor_load_evict_first(to, map, at, barrier);
    else
      cp_async_bulk_tensor_load(to, map, at, barrier);
  }

  LAZYROPE_DEVICE int32 octet_of(const RunPlace& place, int32 slot) const {
    return place.page * maps_.octets_per_page + (place.slot + slot) / kOctetSlots;
  }
  LAZYROPE_DEVICE int32 head_of(const RunPlace& place) const {
    return place.page * maps_.heads_per_page + kv_head_;
  }

  const PoolMaps& maps_;
  const StepView& step_;
  Memory memory_;
  UseSide windows_;
  FillSide keys_;
  FillSide values_;
  RingPlace<Memory::kStages> key_;
  RingPlace<Memory::kStages> value_;
  int32 kv_head_ = 0;
};

}  // namespace lazyrope
