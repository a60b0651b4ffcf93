// What wgmma takes, on every isa. PTX ISA 9.0, "Asynchronous Warpgroup Level Matrix Shared Memory
// Layout" and "Matrix Descriptor Format".
#pragma once

#include "abi/tensor_map.h"
#include "isa/memory.cuh"

namespace lazyrope {

// Types of an operand's elements.
struct WgmmaBf16 {
  static constexpr bool kIsBf16 = true;
};
struct WgmmaF16 {
  static constexpr bool kIsBf16 = false;
};

// Along which dimension of an operand in shared memory its elements lie together: K, or M (N for
// B).
enum class Major { kK, kMN };

inline constexpr int kWarpgroupThreads = 128;

// An operand in shared memory.
struct SharedDescriptor {
  uint64 bits;

  // The same `bytes`, a multiple of 16, further on.
  LAZYROPE_DEVICE SharedDescriptor operator+(int32 bytes) const {
    return {bits + static_cast<uint64>(bytes >> 4)};
  }
  // The same where the operand's address has none of the bits of `bytes`: without a carry.
  LAZYROPE_DEVICE SharedDescriptor operator|(int32 bytes) const {
    return {bits | static_cast<uint64>(bytes >> 4)};
  }
  // The same, but what lies at the leading offset stays where it is.
  LAZYROPE_DEVICE SharedDescriptor start_moved(int32 bytes) const {
    const auto units = static_cast<uint64>(bytes >> 4);
    return {bits + units - (units << 16)};
  }
};

// Core matrices are 8 x 16 bytes. Offsets between them, multiples of 16, by layout:
// K-major, not swizzled: `leading_bytes` to the next along K, `stride_bytes` along M or N.
// K-major, swizzled: rows of the swizzle's span, 8 make an atom; `stride_bytes` to the next atom
// along M or N, `leading_bytes` is not used.
// MN-major, not swizzled: `leading_bytes` along K, `stride_bytes` along M or N.
// MN-major, swizzled: an atom is 8 rows (of K) of the swizzle's span; `leading_bytes` to the next
// along M or N, `stride_bytes` along K.
// A swizzled operand's atoms are aligned to their size, 8 x the swizzle's span.
LAZYROPE_DEVICE uint64 descriptor_bits(uint32 start, int32 leading_bytes, int32 stride_bytes,
                                       Swizzle swizzle) {
  const uint64 layout = (4 - static_cast<uint64>(swizzle)) % 4;  // 3, 2, 1 for 32, 64, 128 bytes
  return static_cast<uint64>(start >> 4 & 0x3fff) |
         static_cast<uint64>(leading_bytes >> 4 & 0x3fff) << 16 |
         static_cast<uint64>(stride_bytes >> 4 & 0x3fff) << 32 | layout << 62;
}

// The N of which there are products.
template <int kColumns>
inline constexpr bool kIsWgmmaShape =
    kColumns == 8 || kColumns == 16 || kColumns == 32 || kColumns == 48 || kColumns == 64 ||
    kColumns == 72 || kColumns == 96 || kColumns == 128 || kColumns == 192 || kColumns == 256;

}  // namespace lazyrope
