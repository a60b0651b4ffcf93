#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "runtime/emulator/fault.h"
#include "templates/abi/tensor_map.h"

namespace lazyrope {

// What a bulk copy moves between shared and global memory, in either direction.
struct CopyBox {
  static constexpr std::uint32_t kChunkBytes = 16;  // kept together by every swizzle

  // Bytes that lie together, within the tensor where it is one.
  struct Run {
    std::byte* global;
    std::size_t offset;  // in the box, as if it were not swizzled
    std::size_t bytes;
  };

  // Where a chunk lies in shared memory.
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

// An element's place in a tensor, the innermost dimension first.
using Coordinates = std::span<const std::int32_t, kTensorMapDims>;

// Of cp.async.bulk and cp.async.bulk.tensor. What they do not take throws a Violation.
CopyBox linear_box(const void* global, std::uint32_t shared, std::uint32_t bytes, const Site& site);
CopyBox tensor_box(const TensorMap& map, Coordinates at, std::uint32_t shared, const Site& site);

}  // namespace lazyrope
