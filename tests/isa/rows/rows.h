#pragma once

#include "tests/isa/conformance_cases.h"

// The cases of conformance_cases(), in one file per conformance kernel.
namespace lazyrope {

inline constexpr int kConformanceThreads = 64;  // per CTA, unless a kernel says otherwise
inline constexpr int kConformanceWarp = 32;

std::vector<ConformanceCase> float8_cases();
std::vector<ConformanceCase> grid_cases();
std::vector<ConformanceCase> hopper_cases();
std::vector<ConformanceCase> math_cases();
std::vector<ConformanceCase> matrix_cases();
std::vector<ConformanceCase> mbarrier_cases();
std::vector<ConformanceCase> memory_cases();
std::vector<ConformanceCase> tensor_cases();
std::vector<ConformanceCase> warp_cases();
std::vector<ConformanceCase> wgmma_cases();

// The conformance kernels of these cases.
ConformanceKernel float8_kernel();
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
