#pragma once

#include "tests/isa/witnesses.h"

// The rows of witnesses(), a file for each text.
namespace lazyrope {

inline constexpr int kWitnessThreads = 64;  // of each text's CTAs
inline constexpr int kWitnessWarp = 32;

std::vector<Witness> grid_rows();
std::vector<Witness> hopper_rows();
std::vector<Witness> math_rows();
std::vector<Witness> matrix_rows();
std::vector<Witness> mbarrier_rows();
std::vector<Witness> memory_rows();
std::vector<Witness> tensor_rows();
std::vector<Witness> warp_rows();
std::vector<Witness> wgmma_rows();

// The texts' own launches.
WitnessText grid_text();
WitnessText hopper_text();
WitnessText math_text();
WitnessText matrix_text();
WitnessText mbarrier_text();
WitnessText memory_text();
WitnessText tensor_text();
WitnessText warp_text();
WitnessText wgmma_text();

}  // namespace lazyrope
