// Tensor maps of asynchronous tensor copies (TMA), and swizzles. Host and device share them.
#pragma once

#include "abi/types.h"

namespace lazyrope {

// A swizzle permutes the 16-byte chunks of rows of 32, 64 or 128 bytes in shared memory: it XORs
// one, two or three address bits from bit 4 up with as many from bit 7 up.
enum class Swizzle : int32 { kNone, k32B, k64B, k128B };

// Returns an address as a swizzle changes it.
constexpr uint32 swizzled(uint32 address, Swizzle swizzle) {
  const uint32 mask = (1u << static_cast<uint32>(swizzle)) - 1;
  return address ^ (address >> 7 & mask) << 4;
}
// Returns the bytes within which a swizzle moves chunks, 16 for none.
constexpr int32 swizzle_span(Swizzle swizzle) { return 16 << static_cast<int32>(swizzle); }

inline constexpr int kTensorMapDims = 5;

// Device::encode (runtime/driver/device.h) makes a tensor map, and a kernel gets it in its
// parameters. The driver, or the emulator, defines its contents.
struct alignas(64) TensorMap {
  uint64 opaque[16];
};
static_assert(sizeof(TensorMap) == 128);

// The contents of an emulated TensorMap. Dimensions are in elements, the innermost first.
struct EmulatedTensorMap {
  static constexpr uint32 kMark = 0x70616d74;  // distinguishes a map from other bytes

  uint32 mark;
  Swizzle swizzle;
  uint64 address;
  uint64 dims[kTensorMapDims];
  uint64 strides[kTensorMapDims];  // bytes; the innermost is the element's size
  uint16 box[kTensorMapDims];
  uint8 element_bytes;
  uint8 rank;
};
static_assert(sizeof(EmulatedTensorMap) <= sizeof(TensorMap));

}  // namespace lazyrope
