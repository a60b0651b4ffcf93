// Online softmax over accumulator tiles (Milakov and Gimelshein, arXiv 1805.02867), in base 2 with
// the scale folded in. A block of scores s with running maximum m, sum l and unnormalised rows o
// gives
//   m' = max(m, max_j s_j),  l' = 2^(m - m') l + sum_j 2^(s_j - m'),  o' = 2^(m - m') o + P V.
//
// The running maximum is raised only if a score exceeds it by more than kSlack. Weights then are at
// most 2^kSlack, which the 16-bit types and the fp32 sums hold without loss, and most blocks need
// no rescaling. A caller that does not compare the scores checks the weights with holds(): they may
// reach kMaxAdded.
//
// The result does not depend on the maximum used, but for the rounding of weights to 16 bits; the
// weight of a score equal to the maximum is 1 and exact. So a maximum near zero is replaced by zero
// where the range allows it, which saves subtracting it.
#pragma once

#include "isa/sync.cuh"
#include "tile/warp_product.cuh"

namespace lazyrope {

// Maximum of a row that has seen no key. It is finite, so that no difference with it is NaN, and
// far below any score.
inline constexpr float kNoMaximum = -1e30f;

// The softmax state of a warp's rows: per lane, two rows (h = 0, 1) of each row tile m, as in
// RowLanes or another `Lanes`. All lanes of the warp call the functions together.
//
// With kPlain, scores are logits (log2 units) and weights have the exponent range of fp32. A
// maximum within kNear of zero is then replaced by zero. If all maxima of the warp are zero,
// nothing is subtracted.
template <int kRowTiles, class Lanes = RowLanes, bool kPlain = false>
struct SoftmaxState {
  static constexpr float kSlack = 8.0f;
  static constexpr float kNear = 32.0f;
  // Greatest sum of a lane's weights in a row: 32 weights of 2^kSlack, or one weight that fp16
  // still holds. With kPlain it is 2^kNear times that: values of 2^40 and 2^20 keys still do not
  // exceed fp32.
  static constexpr float kMaxAdded = kPlain ? 8192.0f * 4294967296.0f : 8192.0f;

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

  // Adds a logit (log2 units) to a row before its first key: one more term of the sum, without a
  // value.
  LAZYROPE_DEVICE void add_sink(int m, int h, float logit) {
    const float top = smaller(max_f32(logit, kNoMaximum), -kNoMaximum);
    maximum[m][h] = snapped(top);
    sum[m][h] =
        Lanes::is_first() && logit > kNoMaximum ? ex2_approx_ftz_f32(top - maximum[m][h]) : 0.0f;
  }
  LAZYROPE_DEVICE static float snapped(float maximum) {
    return kPlain && maximum >= -kNear && maximum <= kNear ? 0.0f : maximum;
  }

  // Replaces scores by weights. Where a maximum is raised, it rescales the sums and `rows`;
  // `are_zero` says that rows need no rescaling.
  template <class Scores, class Rows>
  LAZYROPE_DEVICE void softmax_step(Scores& scores, Rows& rows, float scale_log2,
                                    bool are_zero = false) {
    float factor[kRowTiles][2];
    if (raise(scores, scale_log2, factor) && !are_zero) rescale(rows, factor);
    begin_to_shift(scores);
    exponentiate(scores, scale_log2);
  }

  // Tells whether maxima must be subtracted from the scores before exponentiate(): some maximum of
  // the warp is not zero.
  LAZYROPE_DEVICE bool shifts() const { return kPlain && shifts_; }
  template <class Scores>
  LAZYROPE_DEVICE void shift(Scores& scores) const {
    using Access = TileAccess<Scores>;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int n = 0; n < Access::kColumnTiles; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) Access::at(scores, m, n, i) -= maximum[m][i / 2];
  }

  // Raises the maxima that scores exceed by more than the slack. Returns true if a row of the warp
  // did: the sums are then multiplied by `factor`, and the caller must multiply the rows by it.
  template <class Scores>
  LAZYROPE_DEVICE bool raise(const Scores& scores, float scale_log2,
                             float (&factor)[kRowTiles][2]) {
    float top[kRowTiles][2];
    if (!vote_sync_any(exceeds(scores, scale_log2, top))) return false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) top[m][h] = Lanes::maximum(top[m][h]);
    raise_to(top, scale_log2, factor);
    return true;
  }

  // Tells whether a score of the lane exceeds a maximum by more than the slack. `top` gets the
  // lane's greatest score of each row.
  template <class Scores>
  LAZYROPE_DEVICE bool exceeds(const Scores& scores, float scale_log2,
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
        exceeds |= top[m][h] * scale_log2 > maximum[m][h] + kSlack;
      }
    return exceeds;
  }

  // Raises the maxima to `top`, the greatest score of each row, and rescales the sums.
  LAZYROPE_DEVICE void raise_to(const float (&top)[kRowTiles][2], float scale_log2,
                                float (&factor)[kRowTiles][2]) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const float raised = snapped(max_f32(maximum[m][h], top[m][h] * scale_log2));
        factor[m][h] = ex2_approx_ftz_f32(maximum[m][h] - raised);
        maximum[m][h] = raised;
        sum[m][h] *= factor[m][h];
      }
  }

  template <class Rows>
  LAZYROPE_DEVICE static void rescale(Rows& rows, const float (&factor)[kRowTiles][2]) {
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

  // Replaces scores by weights and adds these to the sums.
  template <class Scores>
  LAZYROPE_DEVICE void exponentiate(Scores& scores, float scale_log2) {
    float added[kRowTiles][2] = {};
    exponentiate<0, TileAccess<Scores>::kColumnTiles>(scores, scale_log2, added);
    add(added);
  }

  // Replaces the scores of column tiles kBegin to kEnd - 1 by weights. It does not add to the sums:
  // `added` gets the lane's sum of weights in each row.
  template <int kBegin, int kEnd, class Scores>
  LAZYROPE_DEVICE void exponentiate(Scores& scores, float scale_log2,
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
            score = ex2_approx_ftz_f32(kPlain ? score : score * scale_log2 - maximum[m][h]);
            added[m][h] += score;
          }
      }
  }

  // Tells whether the maxima were great enough for weights whose scores were not compared with
  // them. The lane's sums tell, because no weight exceeds its sum.
  LAZYROPE_DEVICE static bool holds(const float (&added)[kRowTiles][2]) {
    bool holds = true;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
      holds &= added[m][0] <= kMaxAdded && added[m][1] <= kMaxAdded;
    return holds;
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
  // Subtracts the raised maxima from the scores if any is not zero.
  template <class Scores>
  LAZYROPE_DEVICE void begin_to_shift(Scores& scores) {
    if constexpr (kPlain) {
      bool is_zero = true;
#pragma unroll
      for (int m = 0; m < kRowTiles; ++m) is_zero &= maximum[m][0] == 0.0f && maximum[m][1] == 0.0f;
      shifts_ = vote_sync_any(!is_zero);
      if (shifts_) shift(scores);
    }
  }

  bool shifts_ = true;
};

}  // namespace lazyrope
