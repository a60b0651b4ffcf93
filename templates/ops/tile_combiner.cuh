// Merges the parts of a split tile's rows into the output.
#pragma once

#include "ops/partial_rows.cuh"

namespace lazyrope {

// Columns of a slice. A look costs an L1 cache a line for each part and slice, and rows that lie in
// few slices keep few warps busy.
enum Slices : int32 {
  kNarrowSlices = kSliceColumns,     // where they are few
  kWiderSlices = 2 * kSliceColumns,  // where narrow ones would be many
  // Of so many that no lanes share a task: a lane asks for two quads, so that a warp has half as
  // many units to wait for.
  kWidestSlices = 32,
};

// As parts leave them, and as they are merged.
template <class Spec, Slices kSlices>
using SplitRows = PartialRows<Spec::kHeadDim, kSlices, kSlices == kWidestSlices ? 2 : 1>;

// In units, each of which one warp merges at once. A task is some columns of a row: a lane has one,
// or where there are many parts, several lanes share one, each with every so manieth part, unless
// rows enough for all lanes make that needless. Which numbers are added in which order depends on
// the number of parts alone.
template <class Spec, Slices kSlices>
class TileCombiner {
  using Rows = SplitRows<Spec, kSlices>;
  static constexpr bool kSharesTasks = kSlices != kWidestSlices;
  static constexpr int32 kSplitsAtOnce = 4;  // that a lane asks for at once
  // Of so few all parts are looked for as a whole, which shows them sooner; of more that would hold
  // up those who still write.
  static constexpr int32 kFewTasks = 128;
  static constexpr int32 kLaneQuads = Rows::kLaneQuads;
  static constexpr int32 kWarpBits = 5;
  static_assert(kWarpThreads == 1 << kWarpBits);
  // Of a task.
  static constexpr int32 kMaxLanes = kSharesTasks ? kWarpThreads / Rows::kSliceQuads : 1;
  static constexpr int32 kQuads = Spec::kHeadDim / 4;
  static_assert(kLaneQuads == 1 || kQuads % Rows::kSliceQuads == 0, "a lane's quads all exist");
  // With what is missing of the last slice: the quads of a slice are always one warp's.
  static constexpr int32 kRowTasks = Rows::kSlices * Rows::kSliceLanes;

 public:
  // Where there is no task, the last is asked for once more.
  struct Task {
    int32 row;   // of all heads, one head behind the other
    int32 quad;  // the first
    bool exists;
  };
  // What a lane has merged of a unit.
  struct Combined {
    Task task;
    RowQuads<kLaneQuads> partial;
  };

  LAZYROPE_DEVICE TileCombiner(const OutputRows<Spec>& output, const Rows& partials, int32 num_rows,
                               int32 num_heads, int32 num_splits)
      : output_(output),
        partials_(partials),
        num_rows_(num_rows),
        num_tasks_(num_heads * num_rows * kRowTasks),
        num_splits_(num_splits) {
#pragma unroll
    for (int32 lanes = 1; lanes < kMaxLanes; lanes *= 2)
      if (kSplitsAtOnce * lanes < num_splits) ++lane_bits_;
  }

  LAZYROPE_DEVICE int32 num_batches() const {
    return (num_tasks_ + tasks_per_batch() - 1) >> (kWarpBits - lane_bits_);
  }

  // All lanes of a warp, each of which looks for its parts until they have come. False where they
  // have not, after so many looks.
  LAZYROPE_DEVICE bool poll(int32 batch, int32 max_polls, Combined& combined) const {
    combined = {task(batch), empty_partial<kLaneQuads>()};
    const auto columns = partials_.columns(combined.task.row, combined.task.quad);
    if (!kSharesTasks || num_tasks_ > kFewTasks) {
      if (!await_stats(columns, max_polls)) return false;
      max_polls = -1;  // without end
    }
#pragma unroll 1
    for (int32 first = 0; first < num_splits_; first += kSplitsAtOnce * step()) {
      int32 split[kSplitsAtOnce];
#pragma unroll
      for (int i = 0; i < kSplitsAtOnce; ++i) split[i] = first + i * step() + first_split();
      typename Rows::Found found[kSplitsAtOnce] = {};
      bool is_missing[kSplitsAtOnce];
#pragma unroll
      for (int i = 0; i < kSplitsAtOnce; ++i) is_missing[i] = split[i] < num_splits_;
      bool is_there = false;
      // What has come is not asked for again: the last to come are waited for by all.
#pragma unroll 1
      for (; !is_there; --max_polls) {
        if (max_polls == 0) return false;
#pragma unroll
        for (int i = 0; i < kSplitsAtOnce; ++i) columns.find(is_missing[i], split[i], found[i]);
        is_there = true;
#pragma unroll
        for (int i = 0; i < kSplitsAtOnce; ++i) {
          is_missing[i] = is_missing[i] && !found[i].is_complete();
          is_there &= !is_missing[i];
        }
        is_there = !vote_sync_any(!is_there);
      }
      RowQuads<kLaneQuads> partials[kSplitsAtOnce];
      bool exists[kSplitsAtOnce];
#pragma unroll
      for (int i = 0; i < kSplitsAtOnce; ++i) {
        exists[i] = split[i] < num_splits_;
        partials[i] = found[i].partial();
        if (!exists[i]) partials[i].stats.maximum = kNoMaximum;
      }
      combine_into(combined.partial, partials, exists);
    }
    return true;
  }

  // All lanes of a warp: writes what look_for() has found, whose parts nobody looks for any more.
  LAZYROPE_DEVICE void write_and_clear(Combined& combined) const {
    if constexpr (kSharesTasks)
      combine_lanes<Rows::kSliceQuads>(combined.partial, tasks_per_batch());
    const Task& task = combined.task;
    if (!task.exists) return;
    const int32 head = task.row < num_rows_ ? 0 : task.row / num_rows_;
    if (first_split() == 0)
      output_.template write<Rows::kSliceLanes>(head, task.row - head * num_rows_, task.quad,
                                                combined.partial);
    const auto columns = partials_.columns(task.row, task.quad);
#pragma unroll 1
    for (int32 split = first_split(); split < num_splits_; split += step()) columns.clear(split);
  }

 private:
  // Until stats of the unit are there of every part: who writes these has written, or is writing,
  // all that the unit wants of its part, so the rest is sure to come. Those who wait ask for
  // little, a lane for a part, and so hold up neither those who load keys and values meanwhile nor
  // those who write: an L1 cache answers for a line at a time.
  LAZYROPE_DEVICE bool await_stats(const typename Rows::Columns& columns, int32 max_polls) const {
    int32 first = 0;
#pragma unroll 1
    for (; first < num_splits_ && max_polls != 0; --max_polls) {
      const int32 split = smaller(first + lane_index(), num_splits_ - 1);
      if (!vote_sync_any(!columns.has_stats(split))) first += kWarpThreads;
    }
    return first >= num_splits_;
  }

  LAZYROPE_DEVICE Task task(int32 batch) const {
    const int32 wanted = batch * tasks_per_batch() + (lane_index() & (tasks_per_batch() - 1));
    const int32 index = smaller(wanted, num_tasks_ - 1);
    const int32 of_row = index % kRowTasks;
    const int32 quad = of_row / Rows::kSliceLanes * Rows::kSliceQuads + of_row % Rows::kSliceLanes;
    return {index / kRowTasks, smaller(quad, kQuads - 1), wanted < num_tasks_ && quad < kQuads};
  }

  LAZYROPE_DEVICE int32 tasks_per_batch() const { return kWarpThreads >> lane_bits_; }
  LAZYROPE_DEVICE int32 first_split() const { return lane_index() >> (kWarpBits - lane_bits_); }
  LAZYROPE_DEVICE int32 step() const { return 1 << lane_bits_; }

  const OutputRows<Spec>& output_;
  const Rows& partials_;
  int32 num_rows_;  // of a head
  int32 num_tasks_;
  int32 num_splits_;
  int32 lane_bits_ = 0;  // 1 << lane_bits_ lanes have a task
};

}  // namespace lazyrope
