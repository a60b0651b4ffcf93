// Family sm90a, few rows: decode and speculative decoding, by wgmma and TMA (Hopper alone).
//
// A CTA's helpers (family/sm90a/helpers.cuh) bring keys, values and turned queries as they do for
// many rows, and as far ahead as the rings reach: beyond the present item too. One warpgroup
// computes, with rows as columns (family/sm90a/column_consumer.cuh).
#pragma once

#include "family/sm90a/column_consumer.cuh"
#include "family/sm90a/helpers.cuh"

namespace lazyrope {

template <class Spec, class Shape>
class AttendTile {
  using Product = typename Spec::Product;
  static constexpr int kRows = Shape::kWarpRows;
  using Own = ColumnMemory<kRows, Product::kWeightBytes>;
  using Memory = TileMemory<Spec, Shape, Own::kBytes>;
  static_assert(Shape::kRowWarps == 1 && Shape::kKeyWarps == 4);

 public:
  using Params = TmaAttendParams;
  static constexpr int kSharedBytes = Memory::kBytes;

  // All threads of the CTA: its items, one after the other. `memory` is aligned to 1024 bytes.
  LAZYROPE_DEVICE static void run(const TmaAttendParams& params, SharedPtr memory_start) {
    const Memory memory = {memory_start};
    const Chunk first = BlockFinder<Memory>::first_item(params.attend);
    memory.init();
    // By votes: of a number the compiler makes a table of branches, and the way to that is long
    // where little else is done. (With many rows votes have been slower: tests/gpu/NOTES.md.)
    const auto is_below = [](int32 i) { return warp_uniform(warp_index() < i); };
    if (is_below(Memory::kHelperWarps)) return help<Spec>(params, memory, is_below, first);
    if (is_below(Memory::kHelperWarps + 1)) prefetch_first(params.attend.pool, memory);
    ColumnConsumer<Spec, Memory>(params.attend, memory).run();
  }

 private:
  // A warp that computes, which has nothing else to do yet: the first line of each of the runs that
  // the CTA's first item knows, so that translations of their addresses are there as they are
  // copied.
  LAZYROPE_DEVICE static void prefetch_first(const KvPool& pool, Memory memory) {
    UseSide(memory.at + Memory::kItemBarriers).look(0);
    const ItemPtr item = memory.item(0);
    const ItemStart start = item.start();
    const int32 run = lane_index();
    const bool exists = item.extent().num_blocks > 0 && run * kRunSlots < start.end;
    const RunPlace place = Memory::Table::start_run(item, start, run);
    const uint64 at = static_cast<uint64>(static_cast<uint32>(place.page)) * pool.page_stride +
                      static_cast<uint32>(place.slot) * pool.slot_stride +
                      static_cast<uint32>(item.rows().kv_head) * pool.head_stride;
    if (exists) prefetch_global_l2(static_cast<const uint8*>(pool.keys) + at);
    if (exists) prefetch_global_l2(static_cast<const uint8*>(pool.values) + at);
  }
};

}  // namespace lazyrope
