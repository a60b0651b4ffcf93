// Merges the parts of a split tile's rows into the output.
#pragma once

#include "ops/partial_rows.cuh"

namespace lazyrope {

// In units, each of which one warp merges at once. A task is four columns of a row: a lane has one,
// or where there are many parts, several lanes share one, each with every so manieth part. Which
// numbers are added in which order depends on the number of parts alone.
template <class Spec>
class TileMerge {
  using Rows = PartialRows<Spec::kHeadDim>;
  static constexpr int32 kParts = 8;  // that a lane asks for at once
  static constexpr int32 kMostLanes = kWarpThreads / Rows::kSliceQuads;  // of a task
  static constexpr int32 kQuads = Spec::kHeadDim / 4;
  // With what is missing of the last slice: the quads of a slice are always one warp's.
  static constexpr int32 kRowTasks = num_slices(Spec::kHeadDim) * Rows::kSliceQuads;

 public:
  using Merged = RowPart;  // what a lane has merged of a unit

  LAZYROPE_DEVICE TileMerge(const OutputRows<Spec>& output, const Rows& parts, int32 num_rows,
                            int32 num_heads, int32 num_parts)
      : output_(output),
        parts_(parts),
        num_rows_(num_rows),
        num_tasks_(num_heads * num_rows * kRowTasks),
        num_parts_(num_parts) {
    int32 lanes = 1;
    while (lanes < kMostLanes && lanes * kParts < num_parts) lanes *= 2;
    unit_tasks_ = kWarpThreads / lanes;
  }

  LAZYROPE_DEVICE int32 num_units() const { return ceil_div(num_tasks_, unit_tasks_); }

  // All lanes of a warp. False where some part is not there yet.
  LAZYROPE_DEVICE bool look_at(int32 unit, Merged& merged) const {
    const Task task = this->task(unit);
    merged = no_part();
#pragma unroll 1
    for (int32 first = first_part(); vote_sync_any(first < num_parts_); first += kParts * step()) {
      typename Rows::Found found[kParts];
#pragma unroll
      for (int i = 0; i < kParts; ++i)
        found[i] = parts_.find(smaller(first + i * step(), num_parts_ - 1), task.row, task.quad);
      bool is_there = true;
#pragma unroll
      for (int i = 0; i < kParts; ++i) is_there &= found[i].is_complete();
      if (vote_sync_any(!is_there)) return false;
      RowPart parts[kParts];
#pragma unroll
      for (int i = 0; i < kParts; ++i)
        parts[i] = first + i * step() < num_parts_ ? found[i].part() : no_part();
      merge_into(merged, parts);
    }
    return true;
  }

  // All lanes of a warp: writes what look_at() has found, whose parts nobody looks for any more.
  LAZYROPE_DEVICE void keep(int32 unit, Merged& merged) const {
    merge_lanes(merged, unit_tasks_);
    const Task task = this->task(unit);
    if (!task.exists) return;
    if (first_part() == 0)
      output_.write(task.row / num_rows_, task.row % num_rows_, task.quad, merged);
#pragma unroll 1
    for (int32 part = first_part(); part < num_parts_; part += step())
      parts_.clear(part, task.row, task.quad);
  }

 private:
  // Where there is no task, or part, the last is asked for once more.
  struct Task {
    int32 row;  // of all heads, one head behind the other
    int32 quad;
    bool exists;
  };

  LAZYROPE_DEVICE Task task(int32 unit) const {
    const int32 wanted = unit * unit_tasks_ + lane_index() % unit_tasks_;
    const int32 index = smaller(wanted, num_tasks_ - 1);
    const int32 quad = index % kRowTasks;
    return {index / kRowTasks, smaller(quad, kQuads - 1), wanted < num_tasks_ && quad < kQuads};
  }

  LAZYROPE_DEVICE int32 first_part() const { return lane_index() / unit_tasks_; }
  LAZYROPE_DEVICE int32 step() const { return kWarpThreads / unit_tasks_; }

  const OutputRows<Spec>& output_;
  const Rows& parts_;
  int32 num_rows_;  // of a head
  int32 num_tasks_;
  int32 num_parts_;
  int32 unit_tasks_;
};

}  // namespace lazyrope
