// A tile of 16-bit elements in shared memory, rows of kColumns. The 16-byte chunks of a row are
// permuted by its row number, so that eight rows of one chunk column lie in eight different bank
// groups: ldmatrix, and copies along a row, are free of bank conflicts. Tiles are aligned to their
// rows, so that the permutation is an exclusive or of address bits.
#pragma once

#include "isa/memory.cuh"
#include "tile/element.cuh"

namespace lazyrope {

template <int kColumns>
struct SharedTile {
  static_assert(kColumns % 64 == 0, "the permutation needs rows of a multiple of 128 bytes");
  static constexpr int kChunks = kColumns / kChunkElements;
  static constexpr int kRowBytes = kColumns * kElementBytes;

  LAZYROPE_DEVICE static SharedPtr chunk(SharedPtr tile, int32 row, int32 chunk) {
    return tile + row * kRowBytes + ((chunk ^ (row & 7)) * 16);
  }

  // Four consecutive elements.
  LAZYROPE_DEVICE static SharedPtr quad(SharedPtr tile, int32 row, int32 quad) {
    return chunk(tile, row, quad >> 1) + (quad & 1) * 8;
  }

  // The address this lane gives to ldmatrix for rows 0 to 15 and columns 0 to 15. Its registers are
  // rows 0-7 and 8-15 of the first eight columns, then of the other eight.
  LAZYROPE_DEVICE static SharedPtr fragment(SharedPtr tile, int32 lane) {
    return chunk(tile, lane & 15, lane >> 4);
  }
  LAZYROPE_DEVICE static SharedPtr columns(SharedPtr fragment, int32 sixteens) {
    return fragment ^ (sixteens * 32);
  }
  LAZYROPE_DEVICE static SharedPtr rows(SharedPtr fragment, int32 sixteens) {
    return fragment + sixteens * 16 * kRowBytes;
  }
};

}  // namespace lazyrope
