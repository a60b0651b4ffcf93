// A tile of elements of kBytes bytes in shared memory, rows of kColumns. Eight rows of one column
// of 16-byte chunks lie in eight different bank groups, so that ldmatrix, and copies along a row,
// are free of bank conflicts: where a row is a multiple of 128 bytes, its chunks are permuted by
// its number (an exclusive or of address bits: such tiles are aligned to 128 bytes); otherwise rows
// are an odd number of chunks apart.
//
// Products take 16 columns at once. Where kColumns is no multiple of 16, the chunk behind a row is
// part of it, and zero.
#pragma once

#include "isa/memory.cuh"
#include "tile/element.cuh"

namespace lazyrope {

template <int kColumns, int kBytes = kElementBytes>
struct SharedTile {
  static_assert(kColumns * kBytes % 16 == 0);
  static constexpr int kSixteens = (kColumns + 15) / 16;
  static constexpr int kChunks = kBytes * kSixteens;
  static constexpr int kFilledChunks = kColumns * kBytes / 16;  // the others are zero
  static constexpr bool kPermutes = kChunks % 8 == 0;
  static constexpr int kPermutedBytes = 128;  // among themselves
  static constexpr int kRowBytes = (kPermutes || kChunks % 2 == 1 ? kChunks : kChunks + 1) * 16;

  LAZYROPE_DEVICE static SharedPtr chunk(SharedPtr tile, int32 row, int32 chunk) {
    const int32 column = kPermutes ? chunk ^ (row & 7) : chunk;
    return tile + row * kRowBytes + column * 16;
  }

  // The chunk of the same column `rows` rows below, a multiple of a power of two that is greater
  // than the chunk's own row.
  LAZYROPE_DEVICE static SharedPtr below(SharedPtr chunk, int32 rows) {
    return (kPermutes ? chunk ^ ((rows & 7) * 16) : chunk) + rows * kRowBytes;
  }

  // Columns run * kCount to run * kCount + kCount - 1.
  template <int kCount>
  LAZYROPE_DEVICE static SharedPtr run(SharedPtr tile, int32 row, int32 run) {
    constexpr int32 kRuns = 16 / (kCount * kBytes);  // in a chunk
    return chunk(tile, row, run / kRuns) + run % kRuns * (kCount * kBytes);
  }

  // What lies kApart bytes behind `place` in its row, where that follows from `place` alone: whole
  // permuted parts further on; or in the same part, if kApart is a power of two and `place` that of
  // a column whose offset has this bit not set.
  template <int kApart>
  static constexpr bool kHasFixedOffset =
      !kPermutes || kApart % kPermutedBytes == 0 || is_power_of_two(kApart);
  template <int kApart>
  LAZYROPE_DEVICE static SharedPtr offset_by(SharedPtr chunk) {
    static_assert(kHasFixedOffset<kApart>);
    return kPermutes && kApart < kPermutedBytes ? chunk ^ kApart : chunk + kApart;
  }

  // The address this lane gives to ldmatrix for columns 0 to 15. Of two-byte elements its registers
  // are rows 0-7 and 8-15 of the first eight columns, then of the other eight; of bytes, rows 0-7,
  // 8-15, 16-23 and 24-31.
  LAZYROPE_DEVICE static SharedPtr fragment(SharedPtr tile, int32 lane) {
    if constexpr (kBytes == 2)
      return chunk(tile, lane & 15, lane >> 4);
    else
      return chunk(tile, lane, 0);
  }
  // The same for keys: of two-byte elements the registers are columns 0-7 and 8-15 of rows 0-7,
  // then of rows 8-15, so that what a product takes together lies together.
  LAZYROPE_DEVICE static SharedPtr key_fragment(SharedPtr tile, int32 lane) {
    if constexpr (kBytes == 2)
      return chunk(tile, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
    else
      return fragment(tile, lane);
  }
  LAZYROPE_DEVICE static SharedPtr columns(SharedPtr fragment, int32 sixteens) {
    constexpr int32 kStep = 16 * kBytes;
    constexpr int32 kSteps = 128 / kStep;
    if constexpr (!kPermutes)
      return fragment + sixteens * kStep;
    else if constexpr ((kRowBytes & (kRowBytes - 1)) == 0)
      return fragment ^ (sixteens * kStep);
    else  // 128 bytes are permuted among themselves
      return (fragment ^ (sixteens % kSteps * kStep)) + sixteens / kSteps * 128;
  }
  LAZYROPE_DEVICE static SharedPtr rows(SharedPtr fragment, int32 sixteens) {
    return fragment + sixteens * 16 * kRowBytes;
  }
};

}  // namespace lazyrope
