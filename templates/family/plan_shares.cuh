// How a line of work is divided: into a share of each CTA, and, where that is worth it, rounds of
// smaller ones in a queue, which CTAs take when they have done theirs. For SMs do not read memory
// equally fast: on an H200 those of one GPC finish a quarter sooner than the others.
#pragma once

#include "isa/types.cuh"

namespace lazyrope {

// Of a CTA's part of the line, in 64 grains, 56 are its own share. Of what is left each round takes
// half, the last all of it.
class Shares {
 public:
  static constexpr int32 kMostRounds = 5;

  // `blocks`: of a CTA's part of the line.
  LAZYROPE_DEVICE Shares(int32 num_ctas, int32 blocks, int32 most_rounds)
      : num_ctas_(num_ctas), rounds_(1) {
#pragma unroll 1
    for (int32 rounds = 3; rounds <= most_rounds; ++rounds)
      if (blocks / kGrains * (kLeft >> (rounds - 2)) >= kLeastBlocks) rounds_ = rounds;
  }

  LAZYROPE_DEVICE int32 count() const { return rounds_ * num_ctas_; }
  LAZYROPE_DEVICE int32 num_queued() const { return count() - num_ctas_; }

  // Where a share begins, counted in grains of the line.
  LAZYROPE_DEVICE int32 begin(int32 share) const {
    if (rounds_ == 1) return share * kGrains;
    const int32 round = share / num_ctas_;
    const int32 in_round = share - round * num_ctas_;
    if (round == 0) return in_round * (kGrains - kLeft);
    const int32 left = kLeft >> (round - 1);
    return num_ctas_ * (kGrains - left) + in_round * (round == rounds_ - 1 ? left : left / 2);
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
