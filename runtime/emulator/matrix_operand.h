#pragma once

#include <cstdint>
#include <vector>

#include "runtime/emulator/fault.h"
#include "templates/abi/tensor_map.h"

namespace lazyrope {

// An operand of wgmma in shared memory, 16 elements along K, decoded from its descriptor
// (templates/isa/wgmma_types.cuh). A descriptor that the hardware would misread throws a Violation.
class MatrixOperand {
 public:
  static constexpr int kDepth = 16;
  static constexpr std::uint32_t kChunkBytes = 16;  // every layout keeps a chunk contiguous

  // `extent` is the number of elements along M or N.
  MatrixOperand(std::uint64_t descriptor, bool is_mn_major, int extent, const Site& site);

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
};

}  // namespace lazyrope
