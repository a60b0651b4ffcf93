// Combines the KV splits of a tile's rows (ops/combine.cuh) and writes the output.
#pragma once

#include "ops/output_rows.cuh"
#include "ops/partial_rows.cuh"

namespace lazyrope {

// The columns of a slice. With wide slices a poll loads fewer L1 cache lines: it loads one for each
// split and slice. With narrow slices a row keeps more warps busy.
enum SliceWidth : int32 {
  kNarrowSlices = kSliceColumns,    // for few rows
  kWideSlices = 2 * kSliceColumns,  // for more rows, which would have many narrow slices
  // With so many rows no lanes share a task. A lane loads two quads, so that a warp waits for half
  // as many batches.
  kWidestSlices = 32,
};

// The partial rows, as a CTA writes them and as they are combined.
template <class Spec, SliceWidth kSliceWidth>
using SplitRows =
    PartialRows<Spec::kHeadDim, kSliceWidth, kSliceWidth == kWidestSlices ? 2 : 1, Spec::kMemories>;

// A lane's task in a batch. A lane without a task of its own repeats the last one.
struct CombineTask {
  int32 row;   // counted through all heads: first the rows of the first head
  int32 quad;  // first quad
  bool exists;
};

// A lane's result for one batch.
template <int kLaneQuads, int kMemories>
struct CombinedTask {
  CombineTask task;
  RowQuads<kLaneQuads> partial;
  RowEntries<kMemories> best;
};
template <int kLaneQuads>
struct CombinedTask<kLaneQuads, 0> {
  CombineTask task;
  RowQuads<kLaneQuads> partial;
};

// Combines a tile in batches, each by one warp. A task is kLaneQuads quads of one row, and a lane
// has one task. If there are many splits, several lanes share a task and divide its splits. With
// kWidestSlices they do not, because there are enough tasks for all lanes. The order in which
// numbers are added depends on the number of splits alone.
template <class Spec, SliceWidth kSliceWidth>
class TileCombiner {
  using Rows = SplitRows<Spec, kSliceWidth>;
  using Output = typename ResultRows<Spec>::Type;
  static constexpr bool kSharesTasks = kSliceWidth != kWidestSlices;
  static constexpr bool kHasStates = Spec::kMemories > 0;
  // The splits that a lane loads at once. With best entries it has no registers for more.
  static constexpr int32 kSplitsAtOnce = kHasStates ? 2 : 4;
  // With at most so many tasks, all words are polled at once, which finds the last one sooner. With
  // more tasks, this would delay the CTAs that still write.
  static constexpr int32 kFewTasks = 128;
  static constexpr int32 kLaneQuads = Rows::kLaneQuads;
  static constexpr int32 kWarpBits = 5;
  static_assert(kWarpThreads == 1 << kWarpBits);
  // The greatest number of lanes that share a task.
  static constexpr int32 kMaxLanes = kSharesTasks ? kWarpThreads / Rows::kSliceQuads : 1;
  static constexpr int32 kQuads = Spec::kHeadDim / 4;
  static_assert(kLaneQuads == 1 || kQuads % Rows::kSliceQuads == 0, "a lane's quads all exist");
  // The tasks of a row. The last slice counts as a full one, because one warp has all quads of a
  // slice.
  static constexpr int32 kRowTasks = Rows::kNumSlices * Rows::kSliceLanes;

 public:
  using Task = CombineTask;
  using Combined = CombinedTask<kLaneQuads, Spec::kMemories>;

  LAZYROPE_DEVICE TileCombiner(const Output& output, const Rows& partials, int32 num_rows,
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

  // Polls the batch's partial results until all of them have arrived, and combines them. Returns
  // false if some have not arrived after max_polls polls. All lanes of a warp take part.
  LAZYROPE_DEVICE bool poll(int32 batch, int32 max_polls, Combined& combined) const {
    combined = {task(batch), empty_partial<kLaneQuads>()};  // its best entries are none
    const auto columns = partials_.columns(combined.task.row, combined.task.quad);
    if (!kSharesTasks || num_tasks_ > kFewTasks) {
      if (!poll_stats(columns, max_polls)) return false;
      max_polls = -1;  // no limit
    }
#pragma unroll 1
    for (int32 first = 0; first < num_splits_; first += kSplitsAtOnce * task_lanes()) {
      int32 split[kSplitsAtOnce];
#pragma unroll
      for (int i = 0; i < kSplitsAtOnce; ++i) split[i] = first + i * task_lanes() + first_split();
      typename Rows::LoadedWords words[kSplitsAtOnce] = {};
      bool is_missing[kSplitsAtOnce];
#pragma unroll
      for (int i = 0; i < kSplitsAtOnce; ++i) is_missing[i] = split[i] < num_splits_;
      bool have_arrived = false;
      // Words that have arrived are not loaded again. All lanes wait for the last word.
#pragma unroll 1
      for (; !have_arrived; --max_polls) {
        if (max_polls == 0) return false;
#pragma unroll
        for (int i = 0; i < kSplitsAtOnce; ++i) columns.load_if(is_missing[i], split[i], words[i]);
        have_arrived = true;
#pragma unroll
        for (int i = 0; i < kSplitsAtOnce; ++i) {
          is_missing[i] = is_missing[i] && !words[i].is_complete();
          have_arrived &= !is_missing[i];
        }
        have_arrived = !vote_sync_any(!have_arrived);
      }
      RowQuads<kLaneQuads> partials[kSplitsAtOnce];
      bool exists[kSplitsAtOnce];
#pragma unroll
      for (int i = 0; i < kSplitsAtOnce; ++i) {
        exists[i] = split[i] < num_splits_;
        partials[i] = words[i].partial();
        if (!exists[i]) partials[i].stats.maximum = kNoMaximum;
        // The words of a split that does not exist are 0, and improve nothing.
        if constexpr (kHasStates) combined.best.improve(words[i].best_entries());
      }
      combine_into(combined.partial, partials, exists);
    }
    return true;
  }

  // Writes the rows that poll() has combined, and sets their partial results to 0, because no other
  // thread polls them. All lanes of a warp take part.
  LAZYROPE_DEVICE void write_and_clear(Combined& combined) const {
    if constexpr (kHasStates) add_entries(combined);
    if constexpr (kSharesTasks)
      combine_lanes<Rows::kSliceQuads>(combined.partial, tasks_per_batch());
    const Task& task = combined.task;
    if (!task.exists) return;
    const int32 head = head_of(task);
    if (first_split() == 0)
      output_.template write<Rows::kSliceLanes>(head, task.row - head * num_rows_, task.quad,
                                                combined.partial);
    const auto columns = partials_.columns(task.row, task.quad);
#pragma unroll 1
    for (int32 split = first_split(); split < num_splits_; split += task_lanes())
      columns.clear(split);
  }

 private:
  // Waits until the batch's statistics of all splits have arrived. A CTA that writes statistics has
  // written, or is writing, all words of its split that the batch needs, so they are sure to
  // arrive. Each lane polls only the two statistics of one split. An L1 cache serves one line at a
  // time, so this delays neither loads of keys and values nor the CTAs that write.
  LAZYROPE_DEVICE bool poll_stats(const typename Rows::Columns& columns, int32 max_polls) const {
    int32 first = 0;
#pragma unroll 1
    for (; first < num_splits_ && max_polls != 0; --max_polls) {
      const int32 split = smaller(first + lane_index(), num_splits_ - 1);
      if (!vote_sync_any(!columns.has_stats(split))) first += kWarpThreads;
    }
    return first >= num_splits_;
  }

  // Finds the best entry of each memory among the lanes that share a task, and adds it to the first
  // of these lanes. All lanes of the warp take part.
  LAZYROPE_DEVICE void add_entries(Combined& combined) const {
    const bool is_first = combined.task.exists && first_split() == 0;
    const int32 stride = tasks_per_batch();
#pragma unroll 1
    for (int memory = 0; memory < Spec::kMemories; ++memory) {
      BestEntry best = combined.best.take_first();
      if (!vote_sync_any(is_entry(best))) continue;
      if constexpr (kSharesTasks) {
#pragma unroll
        for (int32 mask = kWarpThreads / 2; mask >= Rows::kSliceQuads; mask /= 2) {
          const BestEntry other = shfl_best(best, mask);
          if (mask >= stride) improve(best, other);
        }
      }
      if (is_first && is_entry(best))
        output_.template add_entry<Rows::kSliceLanes>(head_of(combined.task), combined.task.quad,
                                                      combined.partial, best);
    }
  }
  LAZYROPE_DEVICE int32 head_of(const Task& task) const {
    return task.row < num_rows_ ? 0 : task.row / num_rows_;
  }

  LAZYROPE_DEVICE Task task(int32 batch) const {
    const int32 wanted = batch * tasks_per_batch() + (lane_index() & (tasks_per_batch() - 1));
    const int32 index = smaller(wanted, num_tasks_ - 1);
    const int32 in_row = index % kRowTasks;
    const int32 quad = in_row / Rows::kSliceLanes * Rows::kSliceQuads + in_row % Rows::kSliceLanes;
    return {index / kRowTasks, smaller(quad, kQuads - 1), wanted < num_tasks_ && quad < kQuads};
  }

  LAZYROPE_DEVICE int32 tasks_per_batch() const { return kWarpThreads >> lane_bits_; }
  LAZYROPE_DEVICE int32 first_split() const { return lane_index() >> (kWarpBits - lane_bits_); }
  LAZYROPE_DEVICE int32 task_lanes() const { return 1 << lane_bits_; }

  const Output& output_;
  const Rows& partials_;
  int32 num_rows_;  // rows of one head
  int32 num_tasks_;
  int32 num_splits_;
  int32 lane_bits_ = 0;  // 2^lane_bits_ lanes share a task
};

}  // namespace lazyrope
