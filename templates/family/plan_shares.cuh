// How a line of work is divided: into an equal part for each CTA, and, where that is worth it, each
// part into the CTA's own share and smaller ones in a queue, which CTAs take when they have done
// theirs. For SMs do not read memory equally fast: on an H200 those of one GPC finish a quarter
// sooner than the others.
#pragma once

#include "isa/types.cuh"

namespace lazyrope {

// Of a CTA's part, in 64 grains, 56 are its own share. Of what is left each round of the queue takes
// half, the last all of it. Shares are numbered along the line, so that those of one unit follow one
// another.
class Shares {
 public:
  static constexpr int32 kMostRounds = 5;

  // `blocks`: of a CTA's part.
  LAZYROPE_DEVICE Shares(int32 num_ctas, int32 blocks, int32 most_rounds)
      : num_ctas_(num_ctas), rounds_(1) {
#pragma unroll 1
    for (int32 rounds = 3; rounds <= most_rounds; ++rounds)
      if (blocks / kGrains * (kLeft >> (rounds - 2)) >= kLeastBlocks) rounds_ = rounds;
  }

  LAZYROPE_DEVICE int32 count() const { return rounds_ * num_ctas_; }
  // Shares of a CTA's part: ops/work_queue.cuh.
  LAZYROPE_DEVICE int32 rounds() const { return rounds_; }

  // Where a share begins, counted in grains of the line.
  LAZYROPE_DEVICE int32 begin(int32 share) const {
    const int32 part = share / rounds_;
    const int32 round = share - part * rounds_;
    return part * kGrains + (round == 0 ? 0 : kGrains - (2 * kLeft >> round));
  }
  LAZYROPE_DEVICE int32 num_grains() const { return num_ctas_ * kGrains; }

 private:
  static constexpr int32 kGrains = 64;
  static constexpr int32 kLeft = 8;
  static constexpr int32 kLeastBlocks = 12;  // of a share: less is not worth an item

  int32 num_ctas_;
  int32 rounds_;
};

}  // namespace lazyrope
