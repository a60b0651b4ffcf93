#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// Kernels by the instructions that they are made of: a folder in templates/family each.
enum class Family {
  kSm80,   // mma, ldmatrix, cp.async: every arch has them
  kSm90a,  // wgmma, TMA: Hopper alone
};

std::string_view to_string(Family family);  // "sm80", "sm90a"
Family family_of(std::string_view name);    // SpecError

// A GPU architecture that kernels are compiled for: limits of one SM and what to tell NVRTC. CUDA
// C++ Programming Guide, "Compute Capabilities", technical specifications.
struct Arch {
  std::string name;  // as --gpu-architecture takes it
  int major;
  int minor;
  int shared_per_block;     // bytes, opt-in limit
  int shared_per_sm;        // bytes
  Family family;            // the newest that it has
  std::string isa = "ptx";  // folder in templates/isa
};

inline bool has_family(const Arch& arch, Family family) { return family <= arch.family; }

inline constexpr int kRegistersPerSm = 65536;
inline constexpr int kReservedSharedPerBlock = 1024;  // bytes that the system takes of each block's

const std::vector<Arch>& archs();

// The row of that name; SpecError that lists the names there are.
const Arch& find_arch(std::string_view name);

// The row whose code runs on a device of that compute capability; SpecError if there is none.
const Arch& arch_for_device(int major, int minor);

}  // namespace lazyrope
