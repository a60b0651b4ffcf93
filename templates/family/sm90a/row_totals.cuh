// Totals are the second level of the sums of value products.
//
// The tensor cores add products of 8 bits to an accumulator with 13 bits after the point, so an
// accumulator over many keys loses small terms (flash-attention issue 2250). Here an accumulator
// has the products of kBlocks blocks. It is then added in fp32 to totals in shared memory, because
// registers do not suffice for both.
//
// Each thread reads and writes its own totals alone, [columns / 4][threads] groups of four floats,
// so neither barriers nor bank conflicts arise.
#pragma once

#include "isa/memory.cuh"
#include "tile/wgmma_tile.cuh"

namespace lazyrope {

template <class Rows>
class RowTotals {
  using Four = Words<4>;
  static constexpr int32 kFours = Rows::kCount / 4;
  static constexpr int32 kFourBytes = kWarpgroupThreads * static_cast<int32>(sizeof(Four));

 public:
  static constexpr int32 kBlocks = 16;
  // The totals of a warpgroup take this many bytes.
  static constexpr int32 kBytes = kFours * kFourBytes;

  // `memory` is the warpgroup's, and `thread` the thread's index in it.
  LAZYROPE_DEVICE RowTotals(SharedPtr memory, int32 thread)
      : at_(memory + thread * static_cast<int32>(sizeof(Four))) {}

  LAZYROPE_DEVICE void reset() {
    blocks_ = 0;
    exist_ = false;
  }

  // Call this when the value product of a block has completed.
  LAZYROPE_DEVICE void finish_block(Rows& rows) {
    if (++blocks_ < kBlocks) return;
    blocks_ = 0;
    if (exist_) add_to(rows);
#pragma unroll
    for (int32 i = 0; i < kFours; ++i) {
      Four four;
#pragma unroll
      for (int32 k = 0; k < 4; ++k) {
        four.word[k] = float_as_bits(rows[4 * i + k]);
        rows[4 * i + k] = 0.0f;
      }
      st_shared(at_ + i * kFourBytes, four);
    }
    exist_ = true;
  }

  // Adds the totals to the rows after a work tile's last block.
  LAZYROPE_DEVICE void finish(Rows& rows) const {
    if (exist_) add_to(rows);
  }

  // Multiplies the totals of the thread's rows by `factor`.
  LAZYROPE_DEVICE void rescale(const float (&factor)[1][2]) const {
    if (!exist_) return;
#pragma unroll 4
    for (int32 i = 0; i < kFours; ++i) {
      Four four = ld_shared<Four>(at_ + i * kFourBytes);
#pragma unroll
      for (int32 k = 0; k < 4; ++k)
        four.word[k] = float_as_bits(bits_as_float(four.word[k]) * factor[0][k / 2]);
      st_shared(at_ + i * kFourBytes, four);
    }
  }

 private:
  LAZYROPE_DEVICE void add_to(Rows& rows) const {
#pragma unroll
    for (int32 i = 0; i < kFours; ++i) {
      const Four four = ld_shared<Four>(at_ + i * kFourBytes);
#pragma unroll
      for (int32 k = 0; k < 4; ++k) rows[4 * i + k] += bits_as_float(four.word[k]);
    }
  }

  SharedPtr at_;
  int32 blocks_ = 0;
  bool exist_ = false;
};

// The rows of an accumulator with their totals, as softmax rescales both.
template <class Rows, class Totals>
struct SummedRows {
  Rows& rows;
  const Totals& totals;

  LAZYROPE_DEVICE void rescale_totals(const float (&factor)[1][2]) const { totals.rescale(factor); }
};

// Products of 16 bits are added to one accumulator.
template <class Rows>
struct NoRowTotals {
  static constexpr int32 kBytes = 0;
  LAZYROPE_DEVICE NoRowTotals(SharedPtr, int32) {}
  LAZYROPE_DEVICE void reset() {}
  LAZYROPE_DEVICE void finish_block(Rows&) {}
  LAZYROPE_DEVICE void finish(Rows&) const {}
  LAZYROPE_DEVICE void rescale(const float (&)[1][2]) const {}
};

}  // namespace lazyrope
