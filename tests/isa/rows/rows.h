#pragma once

#include "tests/isa/conformance_cases.h"

// The rows of conformance_cases(), a file for each text.
namespace lazyrope {

inline constexpr int kConformanceThreads = 64;  // of each text's CTAs
inline constexpr int kConformanceWarp = 32;

std::vector<ConformanceCase> grid_rows();
std::vector<ConformanceCase> hopper_rows();
std::vector<ConformanceCase> math_rows();
std::vector<ConformanceCase> matrix_rows();
std::vector<ConformanceCase> mbarrier_rows();
std::vector<ConformanceCase> memory_rows();
std::vector<ConformanceCase> tensor_rows();
std::vector<ConformanceCase> warp_rows();
std::vector<ConformanceCase> wgmma_rows();

// The texts' own launches.
ConformanceKernel grid_kernel();
ConformanceKernel hopper_kernel();
ConformanceKernel math_kernel();
ConformanceKernel matrix_kernel();
ConformanceKernel mbarrier_kernel();
ConformanceKernel memory_kernel();
ConformanceKernel tensor_kernel();
ConformanceKernel warp_kernel();
ConformanceKernel wgmma_kernel();

}  // namespace lazyrope
