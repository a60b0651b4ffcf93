// A tensor in global memory as asynchronous tensor copies see it, shared by host and device.
#pragma once

#include "abi/types.h"

namespace lazyrope {

// How the 16-byte chunks of rows of 32, 64 or 128 bytes are exchanged in shared memory: bits 4 and
// up of an address are XORed with as many from bit 7 up.
enum class Swizzle : int32 { kNone, k32B, k64B, k128B };

// Bits of an address that a swizzle changes; the bytes that it moves chunks within, 16 for none.
constexpr uint32 swizzled(uint32 address, Swizzle swizzle) {
  const uint32 mask = (1u << static_cast<uint32>(swizzle)) - 1;
  return address ^ (address >> 7 & mask) << 4;
}
constexpr int32 swizzle_span(Swizzle swizzle) { return 16 << static_cast<int32>(swizzle); }

inline constexpr int kTensorMapDims = 5;

// Made by Device::encode (runtime/driver/device.h) and passed in a kernel's parameters: what it
// holds is the driver's affair, or the emulator's.
struct alignas(64) TensorMap {
  uint64 opaque[16];
};
static_assert(sizeof(TensorMap) == 128);

// What an emulated TensorMap holds. Dimensions are elements, the innermost first.
struct EmulatedTensorMap {
  static constexpr uint32 kMark = 0x70616d74;  // tells one from other bytes

  uint32 mark;
  Swizzle swizzle;
  uint64 address;
  uint64 dims[kTensorMapDims];
  uint64 strides[kTensorMapDims];  // bytes; of the innermost, the element's size
  uint16 box[kTensorMapDims];
  uint8 element_bytes;
  uint8 rank;
};
static_assert(sizeof(EmulatedTensorMap) <= sizeof(TensorMap));

}  // namespace lazyrope
