// Stores the softmax weights of each run of 16 slots, for the attention mass of pages.
//
// A term is log2 of the sum of a row's weights in one run. It includes the maximum that the row had
// when the weights were computed. So terms of different blocks and KV splits need no common
// maximum. sum_page_mass subtracts the log-sum-exp of the whole row.
//
// Where TileMemory::kAddsUpRuns says so, in prefill on Hopper in bfloat16, products add the weights
// up (store_sums()): to multiply the weights of a run by 16 rows of eight columns, of which one is
// ones and the others are zeros, takes no time of the lanes. The sums are then those of the rounded
// weights. The log-sum-exp may be that of unrounded ones, so the masses of a row that one key
// dominates may be off by 2^-9. Elsewhere the lanes that share a row add up their weights, and
// exchange sums.
//
// Shuffles come before all branches, so that the compiler knows that the lanes have converged.
#pragma once

#include "ops/page_mass.cuh"
#include "ops/softmax.cuh"

namespace lazyrope {

inline constexpr bool kMeasuresPageMass = true;

template <class Spec>
class PageMass {
  static constexpr int kLanes = 4;  // the lanes that share a row, or all rows of ColumnLanes

 public:
  LAZYROPE_DEVICE explicit PageMass(const PageMassView& view) : view_(view) {}

  // The first terms of a lane's rows, which are distributed as RowLanes. -1: the row has no terms.
  template <int kRowTiles>
  struct Rows {
    int32 first[kRowTiles][2];
  };

  // Returns the rows of the lane. The warp's first row is row first_row of the num_rows rows of the
  // work tile's first KV head.
  template <int kRowTiles>
  LAZYROPE_DEVICE Rows<kRowTiles> rows_of(const WorkTileRows& rows, int32 first_row,
                                          int32 num_rows) const {
    Rows<kRowTiles> result;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        result.first[m][h] = view_.rows == nullptr
                                 ? -1
                                 : first_term(rows, first_row + RowLanes::row(m, h), num_rows);
    return result;
  }

  // Stores the terms of `runs` from weights whose columns are those of the runs. All lanes of the
  // warp take part.
  template <int kRowTiles, class Weights, class Softmax>
  LAZYROPE_DEVICE void store_rows(const Weights& weights, const Softmax& softmax,
                                  const Rows<kRowTiles>& rows, RunRange runs) const {
    if (view_.rows == nullptr) return;
    using Access = TileAccess<Weights>;
    static_assert(Access::kColumnTiles % 2 == 0 && Access::kRowTiles == kRowTiles);
    constexpr int kGroups = ceil_div(Access::kColumnTiles / 2, kLanes);
    float sums[kRowTiles][2][kGroups];
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int group = 0; group < kGroups; ++group)
          sums[m][h][group] = sum_of_runs(weights, m, h, group);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int group = 0; group < kGroups; ++group) {
          const int32 run = group * kLanes + lane_index() % kLanes;
          if (rows.first[m][h] >= 0 && run < runs.count)
            st_global(view_.terms + (rows.first[m][h] + runs.first + run),
                      term_of(sums[m][h][group], softmax.maximum[m][h]));
        }
  }

  // Stores the terms of `runs` from the sums of their weights, an accumulator: column r is run r.
  // The terms replace the sums. pin() keeps the compiler from computing each of them in the branch
  // of its store, where the lane would wait for one logarithm after the other.
  template <class Sums, class Softmax>
  LAZYROPE_DEVICE void store_sums(Sums& sums, const Softmax& softmax, const Rows<1>& rows,
                                  RunRange runs) const {
    if (view_.rows == nullptr) return;
#pragma unroll
    for (int i = 0; i < 4; ++i)
      sums[i] = bits_as_float(term_of(sums[i], softmax.maximum[0][i / 2]));
    sums.pin();
    const int32 run = column_of(lane_index(), 0);
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      uint32* const to = view_.terms + (rows.first[0][h] + runs.first + run);
#pragma unroll
      for (int i = 0; i < 2; ++i)
        if (rows.first[0][h] >= 0 && run + i < runs.count)
          st_global(to + i, float_as_bits(sums[2 * h + i]));
    }
  }

  // Stores the terms of one run from weights whose rows are distributed as ColumnLanes. The warp's
  // columns are the slots of the run, of which at least one is valid if the run exists. The rows of
  // each KV head are kHeadRows, of which num_rows exist. All lanes of the warp take part.
  template <int kHeadRows, class Weights, class Softmax>
  LAZYROPE_DEVICE void store_columns(const Weights& weights, const Softmax& softmax,
                                     const WorkTileRows& rows, int32 num_rows, int32 run,
                                     bool exists) const {
    if (view_.rows == nullptr) return;
    using Access = TileAccess<Weights>;
    float sums[Access::kRowTiles][2];
#pragma unroll
    for (int m = 0; m < Access::kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
        sums[m][h] =
            Access::sum(Access::at(weights, m, 0, 2 * h) + Access::at(weights, m, 0, 2 * h + 1));
    if (!exists || lane_index() >= kLanes) return;
#pragma unroll
    for (int m = 0; m < Access::kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int32 row = Access::row(m, h);
        const int32 first =
            first_term(rows_of_head(rows, row / kHeadRows), row % kHeadRows, num_rows);
        if (first >= 0)
          st_global(view_.terms + (first + run), term_of(sums[m][h], softmax.maximum[m][h]));
      }
  }

 private:
  // Returns the term of a row's first run, or -1 if the row has no terms.
  LAZYROPE_DEVICE int32 first_term(const WorkTileRows& rows, int32 row, int32 num_rows) const {
    const QueryRow<Spec> from(rows, smaller(row, num_rows - 1));
    const PageMassRow terms = ld_global_nc(view_.rows + from.token);
    const bool exists = row < num_rows && terms.num_runs > 0;
    return exists ? terms.first + static_cast<int32>(from.head) * terms.num_runs : -1;
  }

  // Adds up a row's weights in each of four runs over the lanes that share the row. The i-th lane
  // gets the sum of run kLanes * group + i.
  template <class Weights>
  LAZYROPE_DEVICE static float sum_of_runs(const Weights& weights, int m, int h, int group) {
    constexpr int kRuns = TileAccess<Weights>::kColumnTiles / 2;
    float of_lane[kLanes];
#pragma unroll
    for (int i = 0; i < kLanes; ++i) {
      const int run = group * kLanes + i;
      of_lane[i] = run < kRuns ? lane_sum(weights, m, h, smaller(run, kRuns - 1)) : 0.0f;
    }
    return sum_of_pair(sum_of_pair(of_lane[0], of_lane[1], 1),
                       sum_of_pair(of_lane[2], of_lane[3], 1), 2);
  }
  // Returns the sum of the lane's weights of one run: two in each of two column tiles.
  template <class Weights>
  LAZYROPE_DEVICE static float lane_sum(const Weights& weights, int m, int h, int run) {
    using Access = TileAccess<Weights>;
    return (Access::at(weights, m, 2 * run, 2 * h) + Access::at(weights, m, 2 * run, 2 * h + 1)) +
           (Access::at(weights, m, 2 * run + 1, 2 * h) +
            Access::at(weights, m, 2 * run + 1, 2 * h + 1));
  }
  // Two lanes that are `distance` apart add up two values. The lower lane gets the sum of the first
  // one, and the upper lane that of the second.
  LAZYROPE_DEVICE static float sum_of_pair(float first, float second, int32 distance) {
    const bool is_upper = (lane_index() & distance) != 0;
    const float own = is_upper ? second : first;
    return own + shfl_sync_bfly(is_upper ? first : second, distance);
  }

  // The term of a run of which the row sees no slot is -infinity, as before the kernel.
  LAZYROPE_DEVICE static uint32 term_of(float sum, float maximum) {
    return float_as_bits(maximum + lg2_approx_ftz_f32(sum));
  }

  const PageMassView& view_;
};

}  // namespace lazyrope
