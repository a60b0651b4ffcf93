// What becomes of an item's rows: they are the output, or a part of their tile's result, which
// those who hold its parts merge.
#pragma once

#include "ops/merge.cuh"
#include "ops/split_tile.cuh"

namespace lazyrope {

template <class Spec>
class ItemResult {
  using Record = PartRecord<Spec::kHeadDim>;

 public:
  LAZYROPE_DEVICE ItemResult(const AttendParams& params, ItemPtr item)
      : params_(params),
        num_rows_(item.extent().num_rows),
        num_heads_(item.rows().num_heads),
        split_(item.split()),
        output_(params, item.rows()),
        partial_(params.work, split_) {}

  // Columns 4 * quad and following of a row of one of the item's KV heads.
  LAZYROPE_DEVICE void write(int32 head, int32 row, int32 quad, const RowPart& part) const {
    if (split_.count == 1)
      output_.write(head, row, quad, part);
    else
      partial_.write(head * num_rows_ + row, quad, part);
  }

  // All threads of the CTA, when every row is written. `may_wait`: it has nothing to do afterwards.
  LAZYROPE_DEVICE void finish(bool may_wait, SharedPtr flags) const {
    if (split_.count == 1) return;
    const SplitTile tile(params_.work, split_, num_heads_ * num_rows_ * Record::kQuads, flags);
    tile.merge_slices(
        may_wait, [&](int32 first, int32 end, const auto& confirm) { merge(first, end, confirm); });
  }

 private:
  // A task is a row's quad. Where there are threads enough, several lanes share a task: each merges
  // every so manieth part, then they merge theirs.
  template <class Confirm>
  LAZYROPE_DEVICE void merge(int32 first, int32 end, const Confirm& confirm) const {
    int32 lanes = 1;
    while (lanes < kWarpThreads && 2 * lanes * (end - first) <= block_threads() &&
           lanes < split_.count)
      lanes *= 2;
    const int32 lane = thread_index() % lanes;
    bool confirmed = false;
#pragma unroll 1
    for (int32 begin = first; begin < end; begin += block_threads() / lanes) {
      const int32 task = begin + thread_index() / lanes;
      const int32 head_row = smaller(task, end - 1) / Record::kQuads;
      const int32 quad = smaller(task, end - 1) % Record::kQuads;
      const int32 parts = ceil_div(split_.count - lane, lanes);
      const RowPart part = merge_lanes(
          merge_parts<8>(parts,
                         [&](int32 i) { return partial_.read(lane + i * lanes, head_row, quad); }),
          lanes);
      if (!confirmed && !confirm()) return;
      confirmed = true;
      if (task < end && lane == 0)
        output_.write(head_row / num_rows_, head_row % num_rows_, quad, part);
    }
  }

  const AttendParams& params_;
  int32 num_rows_;
  int32 num_heads_;
  ItemSplit split_;
  OutputRows<Spec> output_;
  PartialRows<Spec::kHeadDim> partial_;
};

}  // namespace lazyrope
