#include "tests/isa/conformance_cases.h"

#include "tests/isa/rows/rows.h"

namespace lazyrope {

const std::vector<ConformanceKernel>& conformance_kernels() {
  static const std::vector<ConformanceKernel> kernels = {
      float8_kernel(),   grid_kernel(),   hopper_kernel(), math_kernel(), matrix_kernel(),
      mbarrier_kernel(), memory_kernel(), tensor_kernel(), warp_kernel(), wgmma_kernel()};
  return kernels;
}

const std::vector<ConformanceCase>& conformance_cases() {
  static const std::vector<ConformanceCase> cases = [] {
    std::vector<ConformanceCase> all;
    for (const auto& of : {float8_cases, grid_cases, hopper_cases, math_cases, matrix_cases,
                           mbarrier_cases, memory_cases, tensor_cases, warp_cases, wgmma_cases})
      for (ConformanceCase& row : of()) all.push_back(std::move(row));
    return all;
  }();
  return cases;
}

// Returns the FNV-1a hash of the name.
std::uint64_t seed_of(const ConformanceCase& test_case) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : test_case.name)
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

Words input_of(const ConformanceCase& test_case) {
  Generator random(seed_of(test_case));
  return test_case.input(random);
}

}  // namespace lazyrope
