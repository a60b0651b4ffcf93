// Online softmax over accumulator tiles (Milakov and Gimelshein, arXiv 1805.02867), in base 2 with
// the scale folded in. A block of scores s with running maximum m, sum l and unnormalised rows o
// gives
//   m' = max(m, max_j s_j),  l' = 2^(m - m') l + sum_j 2^(s_j - m'),  o' = 2^(m - m') o + P V.
//
// The running maximum is raised only if a score exceeds it by more than kRescaleThreshold, so most
// blocks need no rescaling. Weights are then at most 2^kRescaleThreshold, far below what overflows
// the 16-bit types and the fp32 sums. A caller may also compute weights without comparing the
// scores with the maximum. It then checks the weights with weights_fit().
//
// The result does not depend on the maximum used, except for the rounding of weights to 16 bits.
// The weight of a score equal to the maximum is rounded to exactly 1, unless the score is in the
// thousands. Where weights have the range of fp32, a maximum near zero is replaced by zero, which
// need not be subtracted. The weight of a score that was compared is then at most 2^kSnapRange.
#pragma once

#include "isa/sync.cuh"
#include "tile/warp_product.cuh"
#include "tile/weight_range.cuh"

namespace lazyrope {

// The factor from a score to a logit in log2 units, the same for all rows. ops/temperature.cuh has
// one that differs between rows.
struct UniformScale {
  float value;

  LAZYROPE_DEVICE float of(int, int) const { return value; }
};

// The maximum of a row that has seen no key: far less than any score, and finite, so that no
// difference with it is NaN.
inline constexpr float kNoMaximum = -1e30f;

// The softmax state of a warp's rows. A lane has two rows (h = 0, 1) of each row tile m; `Lanes`
// says which (RowLanes, tile/warp_product.cuh). All lanes of the warp call the functions together.
//
// With kScoresAreLogits, scores come in log2 units, and weights have the exponent range of fp32. A
// maximum within kSnapRange of zero is then replaced by zero. If all maxima of the warp are zero,
// nothing is subtracted from the scores.
//
// With a WeightRange whose kLift is not 0, `maximum` is that much less than the greatest score, so
// that weights are greater (tile/float8_product.cuh).
template <int kRowTiles, class Lanes = RowLanes, bool kScoresAreLogits = false,
          class WeightRange = WideWeights>
struct SoftmaxState {
  static constexpr float kRescaleThreshold = WeightRange::kRescaleThreshold;
  static constexpr float kSnapRange = 32.0f;
  // A maximum is too small if a weight, or the sum of a lane's weights in a row, exceeds this
  // limit. It is the sum of 32 weights of 2^kRescaleThreshold, and fp16 can hold it. With
  // kScoresAreLogits it is 2^kSnapRange times as much, 2^45. Weights times values of up to 2^40,
  // summed over 2^20 keys, are then at most 2^105, which fp32 can hold.
  static constexpr float kMaxLaneSum = kScoresAreLogits ? 8192.0f * 4294967296.0f : 8192.0f;

  float maximum[kRowTiles][2];  // log2 units; equal in all lanes of a row
  float sum[kRowTiles][2];      // sum over this lane's columns

  LAZYROPE_DEVICE void reset() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        maximum[m][h] = kNoMaximum;
        sum[m][h] = 0.0f;
      }
  }

  // Adds a sink's logit (log2 units) to a row before its first key: one more term of the sum,
  // without a value. A logit of NaN makes the sum NaN, and an infinite one makes it infinite.
  LAZYROPE_DEVICE void add_sink(int m, int h, float logit) {
    maximum[m][h] = lowered(snapped(smaller(max_f32(logit, kNoMaximum), -kNoMaximum)));
    const bool counts = Lanes::is_first() && !(logit <= kNoMaximum);
    sum[m][h] = counts ? ex2_approx_ftz_f32(logit - maximum[m][h]) : 0.0f;
  }
  // Returns the maximum for scores of which the greatest is `score`.
  LAZYROPE_DEVICE static float lowered(float score) {
    if constexpr (WeightRange::kLift == 0.0f)
      return score;
    else
      return score - WeightRange::kLift;
  }
  // Returns zero for a maximum near zero, where that is allowed, else the maximum.
  LAZYROPE_DEVICE static float snapped(float maximum) {
    return kScoresAreLogits && maximum >= -kSnapRange && maximum <= kSnapRange ? 0.0f : maximum;
  }

  // Replaces scores by weights. Where it raises a maximum, it rescales the sums and `rows`. With
  // rows_are_zero, `rows` need no rescaling. Without may_snap, maxima that are raised are scores,
  // also near zero, so the weight of a row's only key is 1.
  template <class Scores, class Rows, class Scale>
  LAZYROPE_DEVICE void softmax_step(Scores& scores, Rows& rows, const Scale& scale,
                                    bool rows_are_zero = false, bool may_snap = true) {
    float factor[kRowTiles][2];
    if (raise(scores, scale, factor, may_snap) && !rows_are_zero) rescale(rows, factor);
    update_shift(scores);
    exponentiate(scores, scale);
  }

  // Tells whether the caller must call subtract_maxima() before exponentiate(): with
  // kScoresAreLogits, if some maximum of the warp is not zero. Without it, exponentiate() subtracts
  // the maxima itself.
  LAZYROPE_DEVICE bool needs_shift() const { return kScoresAreLogits && needs_shift_; }
  template <class Scores>
  LAZYROPE_DEVICE void subtract_maxima(Scores& scores) const {
    using Access = TileAccess<Scores>;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < Access::kColumnTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) Access::at(scores, m, n, i) -= maximum[m][i / 2];
  }

  // Raises all maxima of the warp to those of the scores if a score exceeds its maximum by more
  // than the threshold. Returns true if it does: the sums are then multiplied by `factor`, and the
  // caller must multiply the rows by it.
  template <class Scores, class Scale>
  LAZYROPE_DEVICE bool raise(const Scores& scores, const Scale& scale,
                             float (&factor)[kRowTiles][2], bool may_snap = true) {
    float top[kRowTiles][2];
    if (!vote_sync_any(exceeds(scores, scale, top))) return false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) top[m][h] = Lanes::maximum(top[m][h]);
    raise_to(top, scale, factor, may_snap);
    return true;
  }

  // Tells whether a score of the lane exceeds its row's maximum by more than the threshold. `top`
  // gets the lane's greatest score of each row.
  template <class Scores, class Scale>
  LAZYROPE_DEVICE bool exceeds(const Scores& scores, const Scale& scale,
                               float (&top)[kRowTiles][2]) const {
    using Access = TileAccess<Scores>;
    bool exceeds = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        top[m][h] = max_f32(Access::at(scores, m, 0, 2 * h), Access::at(scores, m, 0, 2 * h + 1));
#pragma unroll
        for (int n = 1; n < Access::kColumnTiles; ++n)
          top[m][h] = max_f32(top[m][h], max_f32(Access::at(scores, m, n, 2 * h),
                                                 Access::at(scores, m, n, 2 * h + 1)));
        exceeds |= top[m][h] * scale.of(m, h) > maximum[m][h] + kRescaleThreshold;
      }
    return exceeds;
  }

  // Raises the maxima to `top`, the greatest score of each row, and rescales the sums. `factor`
  // gets the factors.
  template <class Scale>
  LAZYROPE_DEVICE void raise_to(const float (&top)[kRowTiles][2], const Scale& scale,
                                float (&factor)[kRowTiles][2], bool may_snap = true) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float greatest = max_f32(maximum[m][h], lowered(top[m][h] * scale.of(m, h)));
        const float raised = may_snap ? snapped(greatest) : greatest;
        factor[m][h] = ex2_approx_ftz_f32(maximum[m][h] - raised);
        maximum[m][h] = raised;
        sum[m][h] *= factor[m][h];
      }
  }

  template <class Rows>
  LAZYROPE_DEVICE static void rescale(Rows& rows, const float (&factor)[kRowTiles][2]) {
    if constexpr (requires { rows.rescale_totals(factor); }) {
      rows.rescale_totals(factor);
      rescale(rows.rows, factor);
    } else {
      rescale_tile(rows, factor);
    }
  }

  // Replaces scores by weights and adds these to the sums.
  template <class Scores, class Scale>
  LAZYROPE_DEVICE void exponentiate(Scores& scores, const Scale& scale) {
    float added[kRowTiles][2] = {};
    exponentiate<0, TileAccess<Scores>::kColumnTiles>(scores, scale, added);
    add(added);
  }

  // Replaces the scores of column tiles kBegin to kEnd - 1 by weights. It adds the lane's weights
  // in each row to `added`, not to the sums.
  template <int kBegin, int kEnd, class Scores, class Scale>
  LAZYROPE_DEVICE void exponentiate(Scores& scores, const Scale& scale,
                                    float (&added)[kRowTiles][2]) const {
    using Access = TileAccess<Scores>;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
#pragma unroll
        for (int n = kBegin; n < kEnd; ++n)
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i) {
            float& score = Access::at(scores, m, n, i);
            score = ex2_approx_ftz_f32(kScoresAreLogits ? score
                                                        : score * scale.of(m, h) - maximum[m][h]);
            added[m][h] += score;
          }
      }
  }

  // Tells whether the maxima were great enough for weights whose scores were not compared with
  // them. It checks the lane's sums alone, because no weight exceeds the sum that it is in.
  LAZYROPE_DEVICE static bool weights_fit(const float (&added)[kRowTiles][2]) {
    bool fit = true;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
      fit &= added[m][0] <= kMaxLaneSum && added[m][1] <= kMaxLaneSum;
    return fit;
  }

  LAZYROPE_DEVICE void add(const float (&added)[kRowTiles][2]) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) sum[m][h] += added[m][h];
  }

  // Adds up each row's sum over its lanes.
  LAZYROPE_DEVICE void finish() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) sum[m][h] = Lanes::sum(sum[m][h]);
  }

 private:
  template <class Rows>
  LAZYROPE_DEVICE static void rescale_tile(Rows& rows, const float (&factor)[kRowTiles][2]) {
    using Access = TileAccess<Rows>;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int n = 0; n < Access::kColumnTiles; ++n) {
          Access::at(rows, m, n, 2 * h) *= factor[m][h];
          Access::at(rows, m, n, 2 * h + 1) *= factor[m][h];
        }
  }

  // Subtracts the maxima from the scores if any maximum of the warp is not zero, and records that
  // for needs_shift(). It does nothing without kScoresAreLogits.
  template <class Scores>
  LAZYROPE_DEVICE void update_shift(Scores& scores) {
    if constexpr (kScoresAreLogits) {
      bool is_zero = true;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) is_zero &= maximum[m][0] == 0.0f && maximum[m][1] == 0.0f;
      needs_shift_ = vote_sync_any(!is_zero);
      if (needs_shift_) subtract_maxima(scores);
    }
  }

  bool needs_shift_ = true;
};

}  // namespace lazyrope
