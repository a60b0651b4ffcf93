// The warp that asks for the keys and values of an item's blocks, straight from their pages.
#pragma once

#include "family/sm90a/window_user.cuh"
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
        windows_(memory),
        keys_(memory.at + Memory::kKeyBarriers),
        values_(memory.at + Memory::kValueBarriers) {}

  LAZYROPE_DEVICE void run() {
    for_each_item(memory_, [&](ItemPtr item, int32 place) { copy(item, place); });
  }

 private:
  // Keys go one block ahead of values.
  LAZYROPE_DEVICE void copy(ItemPtr item, int32 place) {
    const Table table = memory_.table(step_, item);
    const int32 num_blocks = item.extent().num_blocks;
    kv_head_ = item.rows().kv_head;
    if (num_blocks == 0) return;
    const int32 first = windows_.begin(place);
    const int32 last = first + num_blocks - 1;
#pragma unroll 1
    for (int32 block = first; block <= last + 1; ++block) {
      if (block > first && block <= last) windows_.reach(block);
      if (block <= last) copy_keys(table, block);
      if (block > first) copy_values(table, block - 1);
      if (block > first && block <= last) windows_.leave(block - 1);
    }
    windows_.leave_last(last);
  }

  LAZYROPE_DEVICE void copy_keys(const Table& table, int32 block) {
    expect(keys_, key_.at);
    copy_runs(maps_.keys, memory_.keys(key_.at), table, block, keys_.given(key_.at));
    key_.advance();
  }
  LAZYROPE_DEVICE void copy_values(const Table& table, int32 block) {
    expect(values_, value_.at);
    copy_runs(maps_.values, memory_.values(value_.at), table, block, values_.given(value_.at));
    value_.advance();
  }

  LAZYROPE_DEVICE static void expect(FillSide& side, int32 place) {
    side.wait(place);
    if (lane_index() == 0) mbarrier_arrive_expect_tx(side.given(place), Memory::kBlockBytes);
  }

  // Runs without a slot of the segment are zero.
  //
  // One lane for the warp: what it gives each copy is then the same for all lanes, as the hardware
  // takes it; copies by several lanes are made one after the other, each twice as slow.
  LAZYROPE_DEVICE void copy_runs(const TensorMap& map, SharedPtr tile, const Table& table,
                                 int32 block, SharedPtr barrier) const {
    const BlockInfo info = table.info(block);
    RunPlace places[kRuns];
#pragma unroll
    for (int32 run = 0; run < kRuns; ++run) places[run] = table.run(block, run);
    if (elect_sync()) {
#pragma unroll
      for (int32 run = 0; run < kRuns; ++run) {
        const bool exists = (run + 1) * kRunSlots > info.begin && run * kRunSlots < info.end;
        const int32 at[5] = {0, 0, 0, exists ? octet_of(places[run]) : kNowhere,
                             head_of(places[run])};
        load(tile + run * kRunBytes, map, at, barrier);
      }
    }
  }

  LAZYROPE_DEVICE static void load(SharedPtr to, const TensorMap& map, const int32 (&at)[5],
                                   SharedPtr barrier) {
    if constexpr (Memory::kReadsOnce)
      cp_async_bulk_tensor_load_evict_first(to, map, at, barrier);
    else
      cp_async_bulk_tensor_load(to, map, at, barrier);
  }

  LAZYROPE_DEVICE int32 octet_of(const RunPlace& place) const {
    return place.page * maps_.octets_per_page + place.slot / kOctetSlots;
  }
  LAZYROPE_DEVICE int32 head_of(const RunPlace& place) const {
    return place.page * maps_.heads_per_page + kv_head_;
  }

  const PoolMaps& maps_;
  const StepView& step_;
  Memory memory_;
  WindowUser<Memory> windows_;
  FillSide keys_;
  FillSide values_;
  RingPlace<Memory::kStages> key_;
  RingPlace<Memory::kStages> value_;
  int32 kv_head_ = 0;
};

}  // namespace lazyrope
