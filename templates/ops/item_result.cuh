// What becomes of an item's rows: they are the output, or a part of their tile's result, which
// those who hold its parts merge.
#pragma once

#include "ops/split_tile.cuh"
#include "ops/tile_merge.cuh"

namespace lazyrope {

// kSlices: of the rows as they are merged (ops/tile_merge.cuh).
template <class Spec, class Team = WholeCta, Slices kSlices = kNarrowSlices>
class ItemResult {
  using Parts = SplitRows<Spec, kSlices>;

 public:
  LAZYROPE_DEVICE ItemResult(const AttendParams& params, ItemPtr item)
      : params_(params),
        num_rows_(item.extent().num_rows),
        rows_(item.rows()),
        split_(item.split()),
        num_owners_(item.num_owners()),
        output_(params.out, params.lse, ValueScales(params.pool), rows_),
        partial_(params.work, split_) {}

  // Whether it is the output.
  LAZYROPE_DEVICE bool is_whole() const { return split_.count == 1; }
  LAZYROPE_DEVICE const OutputRows<Spec>& output() const { return output_; }
  LAZYROPE_DEVICE const Parts& part() const { return partial_; }

  // Columns 4 * quad and following of a row of one of the item's KV heads.
  LAZYROPE_DEVICE void write(int32 head, int32 row, int32 quad, const RowPart& part) const {
    const RowPart parts[] = {part};
    write<1>(head, row, quad, parts);
  }
  // The same of several quads, each kApart behind the one before.
  template <int kApart, int kCount>
  LAZYROPE_DEVICE void write(int32 head, int32 row, int32 quad,
                             const RowPart (&parts)[kCount]) const {
    if (!is_whole()) {
#pragma unroll
      for (int i = 0; i < kCount; ++i)
        partial_.write(head * num_rows_ + row, quad + i * kApart, parts[i]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kCount; ++i) output_.write_values(head, row, quad + i * kApart, parts[i]);
    if (quad == 0) output_.write_lse(head, row, parts[0].stats);
  }

  // All threads of the team, when every row is written. `may_wait`: the CTA has nothing to do
  // afterwards.
  LAZYROPE_DEVICE void finish(bool may_wait, SharedPtr flags) const {
    if (!is_whole())
      merge(params_.work, params_.out, params_.lse, ValueScales(params_.pool), rows_, split_,
            num_owners_, num_rows_, may_wait, flags);
  }

 private:
  // Not inlined: beside the main loop, what it needs would cost that loop registers. It gets the
  // parameters themselves: as a reference they would lie in memory, and be waited for when all else
  // is done.
  LAZYROPE_DEVICE_CALL static void merge(WorkView work, OutputTensor out, LseTensor lse,
                                         ValueScales scales, ItemRows rows, ItemSplit split,
                                         int32 num_owners, int32 num_rows, bool may_wait,
                                         SharedPtr flags) {
    const OutputRows<Spec> output(out, lse, scales, rows);
    const Parts partial(work, split);
    const TileMerge<Spec, kSlices> tile(output, partial, num_rows, rows.num_heads, split.count);
    SplitTile<Team>(work, split, num_owners, flags).merge(tile, may_wait);
  }

  const AttendParams& params_;
  int32 num_rows_;
  ItemRows rows_;
  ItemSplit split_;
  int32 num_owners_;
  OutputRows<Spec> output_;
  Parts partial_;
};

}  // namespace lazyrope
