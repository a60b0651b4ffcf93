// The operand types of wgmma that isa/ptx and isa/emu share. PTX ISA 9.0, "Asynchronous Warpgroup
// Level Matrix Shared Memory Layout" and "Matrix Descriptor Format".
#pragma once

#include "abi/tensor_map.h"
#include "isa/memory.cuh"

namespace lazyrope {

// The element type of both operands.
struct WgmmaBf16 {
  static constexpr bool kIsBf16 = true;
};
struct WgmmaF16 {
  static constexpr bool kIsBf16 = false;
};

// The dimension along which the elements of an operand in shared memory are contiguous: K, or M
// for operand A and N for operand B.
enum class Major { kK, kMN };

inline constexpr int kWarpgroupThreads = 128;

// The matrix descriptor of an operand in shared memory.
struct SharedDescriptor {
  uint64 bits;

  // Returns the descriptor of the operand that starts `bytes` further on. `bytes` is a multiple of
  // 16.
  LAZYROPE_DEVICE SharedDescriptor operator+(int32 bytes) const {
    return {bits + static_cast<uint64>(bytes >> 4)};
  }
  // Does the same without a carry. The operand's address must have none of the bits of `bytes`.
  LAZYROPE_DEVICE SharedDescriptor operator|(int32 bytes) const {
    return {bits | static_cast<uint64>(bytes >> 4)};
  }
  // Moves the start by `bytes` and leaves the address start + leading offset where it is.
  LAZYROPE_DEVICE SharedDescriptor start_moved(int32 bytes) const {
    const auto units = static_cast<uint64>(bytes >> 4);
    return {bits + units - (units << 16)};
  }
};

// Returns the 64 bits of a matrix descriptor. Both offsets are multiples of 16 bytes. An operand
// that is not swizzled consists of core matrices of 8 rows of 16 bytes; a swizzled one consists of
// atoms of 8 rows of the swizzle's span, aligned to their size. The offsets are distances between
// neighbours:
//   layout                 leading_bytes               stride_bytes
//   K-major, plain         core matrices along K       core matrices along M or N
//   K-major, swizzled      not used                    atoms along M or N (rows are along K)
//   MN-major, plain        core matrices along K       core matrices along M or N
//   MN-major, swizzled     atoms along M or N          atoms along K (rows are along M or N)
LAZYROPE_DEVICE uint64 descriptor_bits(uint32 start, int32 leading_bytes, int32 stride_bytes,
                                       Swizzle swizzle) {
  const uint64 layout = (4 - static_cast<uint64>(swizzle)) % 4;  // 3, 2, 1 for 32, 64, 128 bytes
  return static_cast<uint64>(start >> 4 & 0x3fff) |
         static_cast<uint64>(leading_bytes >> 4 & 0x3fff) << 16 |
         static_cast<uint64>(stride_bytes >> 4 & 0x3fff) << 32 | layout << 62;
}

// The N of the wgmma shapes m64nNk16 that the wrappers offer.
template <int kColumns>
inline constexpr bool kIsWgmmaShape =
    kColumns == 8 || kColumns == 16 || kColumns == 32 || kColumns == 48 || kColumns == 64 ||
    kColumns == 72 || kColumns == 80 || kColumns == 96 || kColumns == 112 || kColumns == 128 ||
    kColumns == 160 || kColumns == 192 || kColumns == 256;

}  // namespace lazyrope
