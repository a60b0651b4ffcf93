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
    if (!is_below(Memory::kHelperWarps))
      ColumnConsumer<Spec, Memory>(params.attend, memory).run();
    else
      help<Spec>(params, memory, is_below, first);
  }
};

}  // namespace lazyrope
