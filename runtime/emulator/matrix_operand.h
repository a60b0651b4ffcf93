#pragma once

#include <cstdint>
#include <vector>

#include "runtime/emulator/fault.h"
#include "templates/abi/tensor_map.h"

namespace lazyrope {

// An operand of wgmma in shared memory, 16 elements along K, as its descriptor gives it
// (templates/isa/wgmma_types.cuh). What the hardware would misread throws a Violation.
class MatrixOperand {
 public:
  static constexpr int kDepth = 16;
  static constexpr std::uint32_t kChunkBytes = 16;  // kept together by every layout

  // `extent`: of M or N.
  MatrixOperand(std::uint64_t descriptor, bool is_mn_major, int extent, const Site& site);

  // The address of an element.
  std::uint32_t address(int mn, int k) const;
  // The chunks with some of M or N, and all of K.
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
