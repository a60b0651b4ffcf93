// A row-major tile in shared memory for ldmatrix and mma: rows of kColumns elements of kBytes bytes
// each, in chunks of 16 bytes. Chunk c of row r is at byte
//   r * kRowBytes + (c ^ (r % 8)) * 16   if a row has a multiple of 128 bytes (kPermutes), else
//   r * kRowBytes + c * 16, where kRowBytes is an odd number of chunks.
// In both layouts the same chunk of eight consecutive rows is in eight different bank groups. So
// ldmatrix and copies along a row have no bank conflicts. Permuted tiles are aligned to 128 bytes,
// because the XOR changes address bits.
//
// Products take 16 columns at once. If kColumns is no multiple of 16, a row is padded with a chunk
// of zeros.
#pragma once

#include "abi/shared_layout.h"
#include "isa/memory.cuh"
#include "tile/element.cuh"

namespace lazyrope {

template <int kColumns, int kBytes = kElementBytes>
struct SharedTile {
  static_assert(kColumns * kBytes % 16 == 0);
  static constexpr int kSixteens = (kColumns + 15) / 16;
  static constexpr int kBytesPerElement = kBytes;
  static constexpr int kChunks = shared_row_chunks(kColumns, kBytes);
  static constexpr int kFilledChunks = kColumns * kBytes / 16;  // the others are zeros
  static constexpr bool kPermutes = kChunks % 8 == 0;
  static constexpr int kPermutedBytes = 128;  // a row's chunks are permuted within each 128 bytes
  static constexpr int kRowBytes = shared_row_bytes(kColumns, kBytes);

  LAZYROPE_DEVICE static SharedPtr chunk(SharedPtr tile, int32 row, int32 chunk) {
    const int32 column = kPermutes ? chunk ^ (row & 7) : chunk;
    return tile + row * kRowBytes + column * 16;
  }

  // Moves the address of a chunk down by `rows` rows. The chunk's row % 8 and rows % 8 must have no
  // bit in common.
  LAZYROPE_DEVICE static SharedPtr advance_rows(SharedPtr chunk, int32 rows) {
    return (kPermutes ? chunk ^ ((rows & 7) * 16) : chunk) + rows * kRowBytes;
  }

  // Returns the address of columns run * kCount to run * kCount + kCount - 1.
  template <int kCount>
  LAZYROPE_DEVICE static SharedPtr run(SharedPtr tile, int32 row, int32 run) {
    constexpr int32 kRuns = 16 / (kCount * kBytes);  // in a chunk
    return chunk(tile, row, run / kRuns) + run % kRuns * (kCount * kBytes);
  }

  // offset_by<kOffset>(chunk) returns the address kOffset bytes further in the row of `chunk`. It
  // does not know the row, which restricts kOffset in permuted rows: to a multiple of
  // kPermutedBytes, or to a power of two whose bit is not set in the offset of `chunk` in its row.
  template <int kOffset>
  static constexpr bool kHasFixedOffset =
      !kPermutes || kOffset % kPermutedBytes == 0 || is_power_of_two(kOffset);
  template <int kOffset>
  LAZYROPE_DEVICE static SharedPtr offset_by(SharedPtr chunk) {
    static_assert(kHasFixedOffset<kOffset>);
    return kPermutes && kOffset < kPermutedBytes ? chunk ^ kOffset : chunk + kOffset;
  }

  // Returns the address that the lane passes to ldmatrix for columns 0 to 15. With elements of two
  // bytes the four registers are rows 0-7 and 8-15 of columns 0-7, then rows 0-7 and 8-15 of
  // columns 8-15. With elements of one byte they are rows 0-7, 8-15, 16-23 and 24-31.
  LAZYROPE_DEVICE static SharedPtr fragment(SharedPtr tile, int32 lane) {
    if constexpr (kBytes == 2)
      return chunk(tile, lane & 15, lane >> 4);
    else
      return chunk(tile, lane, 0);
  }
  // Returns the address for keys. With elements of two bytes the four registers are columns 0-7 and
  // 8-15 of rows 0-7, then columns 0-7 and 8-15 of rows 8-15. So registers 0 and 1, and 2 and 3,
  // are operands B of one mma.
  LAZYROPE_DEVICE static SharedPtr key_fragment(SharedPtr tile, int32 lane) {
    if constexpr (kBytes == 2)
      return chunk(tile, (lane & 7) + (lane >> 4) * 8, lane >> 3 & 1);
    else
      return fragment(tile, lane);
  }
  // Moves a fragment address to columns 16 * sixteens and following.
  LAZYROPE_DEVICE static SharedPtr columns(SharedPtr fragment, int32 sixteens) {
    constexpr int32 kStep = 16 * kBytes;
    constexpr int32 kSteps = 128 / kStep;
    if constexpr (!kPermutes)
      return fragment + sixteens * kStep;
    else if constexpr ((kRowBytes & (kRowBytes - 1)) == 0)
      return fragment ^ (sixteens * kStep);
    else  // chunks are permuted within 128 bytes
      return (fragment ^ (sixteens % kSteps * kStep)) + sixteens / kSteps * 128;
  }
  // Moves a fragment address to rows 16 * sixteens and following.
  LAZYROPE_DEVICE static SharedPtr rows(SharedPtr fragment, int32 sixteens) {
    return fragment + sixteens * 16 * kRowBytes;
  }
};

}  // namespace lazyrope
