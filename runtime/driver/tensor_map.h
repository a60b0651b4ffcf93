#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/tensor.h"
#include "templates/abi/tensor_map.h"

namespace lazyrope {

// The bytes of DRAM that a load fetches into L2 at once.
enum class L2Promotion { kNone, k64B, k128B, k256B };

// Describes a tensor from which kernels copy boxes with TMA. The innermost dimension comes first,
// and its elements are contiguous.
struct TensorMapSpec {
  void* data = nullptr;
  ElementType type = ElementType::kBf16;  // elements of 1, 2 or 4 bytes
  std::vector<std::int64_t> dims;         // 2 to 5, in elements
  std::vector<std::int64_t> strides;      // in bytes, of all dims but the innermost
  std::vector<int> box;                   // in elements, as many as dims
  Swizzle swizzle = Swizzle::kNone;
  // With 256 bytes, H200s read 5% slower and H100s 0.2% faster (measured).
  L2Promotion l2_promotion = L2Promotion::k128B;
};

// Returns the bytes of an element. Throws SpecError for a type that no tensor map has.
int tensor_map_element_bytes(ElementType type);

// Throws SpecError for a tensor or box that the hardware has no tensor map for.
void validate(const TensorMapSpec& spec);

// Returns the map in the emulator's format. Throws SpecError as validate() does.
TensorMap emulated_tensor_map(const TensorMapSpec& spec);

}  // namespace lazyrope
