#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// A GPU architecture that kernels are compiled for: limits of one SM and what to tell NVRTC. CUDA
// C++ Programming Guide, "Compute Capabilities", technical specifications.
struct Arch {
  std::string name;  // as --gpu-architecture takes it
  int major;
  int minor;
  int shared_per_block;     // bytes, opt-in limit
  int shared_per_sm;        // bytes
  std::string family;       // folder in templates/family
  std::string isa = "ptx";  // folder in templates/isa
};

inline constexpr int kRegistersPerSm = 65536;
inline constexpr int kReservedSharedPerBlock = 1024;  // bytes that the system takes of each block's

const std::vector<Arch>& archs();

// The row of that name; SpecError that lists the names there are.
const Arch& find_arch(std::string_view name);

// The row whose code runs on a device of that compute capability; SpecError if there is none.
const Arch& arch_for_device(int major, int minor);

}  // namespace lazyrope
