#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/emulator/fault.h"
#include "templates/abi/tensor_map.h"

namespace lazyrope {

// The bytes that a bulk copy moves between shared and global memory, in either direction.
struct CopyBox {
  static constexpr std::uint32_t kChunkBytes = 16;  // every swizzle keeps a chunk contiguous

  // A range of contiguous bytes in global memory. The part of a box outside its tensor has no run.
  struct Run {
    std::byte* global;
    std::size_t offset;  // in the box before swizzling
    std::size_t bytes;
  };

  // Returns the shared memory address of the chunk at this offset of the box, swizzle applied.
  std::uint32_t chunk(std::uint32_t offset) const { return swizzled(shared + offset, swizzle); }
  // Calls visit(offset) for all chunks.
  template <class Visit>
  void for_chunks(const Visit& visit) const {
    for (std::uint32_t offset = 0; offset < bytes; offset += kChunkBytes) visit(offset);
  }

  std::uint32_t shared = 0;
  Swizzle swizzle = Swizzle::kNone;
  std::uint32_t bytes = 0;
  std::vector<Run> runs = {};
};

// The index of an element in a tensor, the innermost dimension first.
using Coordinates = std::span<const std::int32_t, kTensorMapDims>;

// Return the box of a cp.async.bulk and of a cp.async.bulk.tensor. An operand that the instruction
// does not allow throws a Violation, as does a tensor map that Device::encode did not make.
CopyBox linear_box(const void* global, std::uint32_t shared, std::uint32_t bytes, const Site& site);
CopyBox tensor_box(const TensorMap& map, Coordinates at, std::uint32_t shared, const Site& site);

}  // namespace lazyrope
