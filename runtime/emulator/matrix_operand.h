#pragma once

#include <cstdint>
#include <vector>

#include "runtime/emulator/fault.h"
#include "templates/abi/tensor_map.h"

namespace lazyrope {

// An operand of wgmma in shared memory, 32 bytes along K, decoded from its descriptor
// (templates/isa/wgmma_types.cuh). A descriptor that the hardware would misread throws a Violation.
class MatrixOperand {
 public:
  static constexpr int kDepthBytes = 32;
  static constexpr std::uint32_t kChunkBytes = 16;  // every layout keeps a chunk contiguous

  // `extent` is the number of elements along M or N. Only elements of 16 bits can be MN-major.
  MatrixOperand(std::uint64_t descriptor, bool is_mn_major, int extent, int element_bytes,
                const Site& site);

  // Returns the number of elements along K.
  int depth() const { return kDepthBytes / static_cast<int>(element_bytes_); }

  // Returns the shared memory address of an element.
  std::uint32_t address(int mn, int k) const;
  // Returns the addresses of the chunks that hold elements begin .. begin+count-1 of M or N, for
  // all of K.
  std::vector<std::uint32_t> chunks(int begin, int count) const;

 private:
  void check_start(int extent, const Site& site) const;

  std::uint32_t start_;
  std::uint32_t leading_;
  std::uint32_t stride_;
  Swizzle swizzle_;
  bool is_mn_major_;
  std::uint32_t element_bytes_;
};

}  // namespace lazyrope
