// Online softmax over accumulator tiles (Milakov and Gimelshein, arXiv 1805.02867), in base 2 with
// the scale folded in. The running maximum is raised only when a score exceeds it by kSlack:
// weights then reach 2^kSlack at most, which the 16-bit types and the fp32 sums hold without loss,
// and most blocks need no rescaling. The result does not depend on which maximum was used.
#pragma once

#include "isa/sync.cuh"
#include "tile/warp_product.cuh"

namespace lazyrope {

// Maximum of a row that has seen no key: finite, so that no difference with it is NaN, and far
// below any score.
inline constexpr float kNoMaximum = -1e30f;

template <int kRowTiles>
struct SoftmaxState {
  static constexpr float kSlack = 8.0f;

  float maximum[kRowTiles][2];  // log2 units; the four lanes of a row agree
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
    maximum[m][h] = max_f32(logit, kNoMaximum);
    sum[m][h] = lane_index() % 4 == 0 && logit > kNoMaximum ? 1.0f : 0.0f;
  }

  // Turns scores into weights, and rescales `rows` and the sums where the maximum is raised.
  template <int kKeyTiles, int kColumnTiles>
  LAZYROPE_DEVICE void weigh(float (&scores)[kRowTiles][kKeyTiles][4],
                             float (&rows)[kRowTiles][kColumnTiles][4], float scale_log2) {
    float top[kRowTiles][2];
    bool exceeds = false;
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        top[m][h] = max_f32(scores[m][0][2 * h], scores[m][0][2 * h + 1]);
#pragma unroll
        for (int n = 1; n < kKeyTiles; ++n)
          top[m][h] = max_f32(top[m][h], max_f32(scores[m][n][2 * h], scores[m][n][2 * h + 1]));
        exceeds |= top[m][h] * scale_log2 > maximum[m][h] + kSlack;
      }
    if (vote_sync_any(exceeds)) raise(top, rows, scale_log2);
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float added = 0.0f;
#pragma unroll
        for (int n = 0; n < kKeyTiles; ++n)
#pragma unroll
          for (int i = 2 * h; i < 2 * h + 2; ++i) {
            scores[m][n][i] = ex2_approx_ftz_f32(scores[m][n][i] * scale_log2 - maximum[m][h]);
            added += scores[m][n][i];
          }
        sum[m][h] += added;
      }
  }

  // Adds the sums of the four lanes of each row.
  LAZYROPE_DEVICE void finish() {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        sum[m][h] += shfl_sync_bfly(sum[m][h], 1);
        sum[m][h] += shfl_sync_bfly(sum[m][h], 2);
      }
  }

 private:
  template <int kColumnTiles>
  LAZYROPE_DEVICE void raise(const float (&top)[kRowTiles][2],
                             float (&rows)[kRowTiles][kColumnTiles][4], float scale_log2) {
#pragma unroll
    for (int m = 0; m < kRowTiles; ++m)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        float t = top[m][h];
        t = max_f32(t, shfl_sync_bfly(t, 1));
        t = max_f32(t, shfl_sync_bfly(t, 2));
        const float raised = max_f32(maximum[m][h], t * scale_log2);
        const float factor = ex2_approx_ftz_f32(maximum[m][h] - raised);
        maximum[m][h] = raised;
        sum[m][h] *= factor;
#pragma unroll
        for (int n = 0; n < kColumnTiles; ++n) {
          rows[m][n][2 * h] *= factor;
          rows[m][n][2 * h + 1] *= factor;
        }
      }
  }
};

}  // namespace lazyrope
