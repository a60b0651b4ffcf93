// Online softmax over accumulator tiles (Milakov and Gimelshein, arXiv 1805.02867), in base 2 with
// the scale folded in. The running maximum is raised only when a score exceeds it by kSlack:
// weights then reach 2^kSlack at most, which the 16-bit types and the fp32 sums hold without loss,
// and most blocks need no rescaling. Who does not look for it asks holds() of the weights instead:
// they reach kMaxAdded then. But for how weights are rounded to 16 bits the result does not depend
// on which maximum was used (the weight of a score that equals it is 1, and loses nothing): where
// there is room for it, one near zero is taken to be zero, which spares subtracting it.
#pragma once

#include "isa/sync.cuh"
#include "tile/warp_product.cuh"

namespace lazyrope {

// Maximum of a row that has seen no key: finite, so that no difference with it is NaN, and far
// below any score.
inline constexpr float kNoMaximum = -1e30f;

// kPlain: scores are logits (log2 units), and weights have the exponents of fp32. Then a maximum of
// at most kNear, either way, is taken to be zero, and where all of a warp's are, nothing is
// subtracted.
template <int kRowTiles, class Lanes = RowLanes, bool kPlain = false>
struct SoftmaxState {
  static constexpr float kSlack = 8.0f;
  static constexpr float kNear = 32.0f;
  // Of a lane's weights in a row, up to 32 of 2^kSlack, or of one: as a weight, fp16 still holds
  // it. Times 2^kNear, values of 2^40 and 2^20 keys would still not exceed fp32.
  static constexpr float kMaxAdded = kPlain ? 8192.0f * 4294967296.0f : 8192.0f;

  float maximum[kRowTiles][2];  // log2 units; the lanes of a row agree
  float sum[kRowTiles][2];      // of this lane's columns

  LAZYROPE_DEVICE void reset() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        maximum[m][h] = kNoMaximum;
        sum[m][h] = 0.0f;
      }
  }

  // A logit (log2 units) of each row beside those of its keys: one more term of its sum, with no
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

  // Turns scores into weights, and rescales `rows` and the sums where the maximum is raised; rows
  // that `are_zero` need not be.
  template <class Scores, class Rows>
  LAZYROPE_DEVICE void softmax_step(Scores& scores, Rows& rows, float scale_log2,
                                    bool are_zero = false) {
    float factor[kRowTiles][2];
    if (raise(scores, scale_log2, factor) && !are_zero) rescale(rows, factor);
    begin_to_shift(scores);
    exponentiate(scores, scale_log2);
  }

  // Whether maxima are to be subtracted from scores before these are exponentiated: some of the
  // warp is not zero.
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

  // Raises maxima that scores exceed by more than the slack. True where some row of the warp did:
  // then the sums have been, and the rows are to be, multiplied by `factor`.
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

  // Whether a score of the lane exceeds a maximum by more than the slack; the lane's greatest of
  // each row.
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

  // `top`: the greatest score of each row.
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

  // Scores become weights, which are added to the sums.
  template <class Scores>
  LAZYROPE_DEVICE void exponentiate(Scores& scores, float scale_log2) {
    float added[kRowTiles][2] = {};
    exponentiate<0, TileAccess<Scores>::kColumnTiles>(scores, scale_log2, added);
    add(added);
  }

  // The same of some of the tiles of columns, but for the adding: `added` is what each row's
  // weights in this lane come to.
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

  // Whether maxima with which nobody has compared these weights' scores were great enough. The sums
  // tell, for no weight is greater than its sum.
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

  // Adds the sums of a row's lanes.
  LAZYROPE_DEVICE void finish() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) sum[m][h] = Lanes::sum(sum[m][h]);
  }

 private:
  // Maxima have been raised.
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
