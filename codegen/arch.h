#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// The kernel families, named after the oldest arch that has their instructions. Each has a folder
// in templates/family.
enum class Family {
  kSm80,   // mma.sync, ldmatrix, cp.async: every arch has them
  kSm90a,  // wgmma, TMA: Hopper alone
};

std::string_view to_string(Family family);  // "sm80", "sm90a"
Family family_of(std::string_view name);    // throws SpecError on any other name

// A GPU architecture that kernels are compiled for: the limits of one SM, and the name for NVRTC.
// The limits are those of the CUDA Programming Guide, "Compute Capabilities". The unit tests
// compare them with cuda_occupancy.h of the CUDA Toolkit.
struct Arch {
  std::string name;  // the value of --gpu-architecture
  int major;
  int minor;
  int shared_per_block;     // bytes, opt-in limit
  int shared_per_sm;        // bytes
  Family family;            // the newest family that the arch can run
  std::string isa = "ptx";  // folder in templates/isa
};

// Tells whether the arch can run kernels of the family.
inline bool has_family(const Arch& arch, Family family) { return family <= arch.family; }

inline constexpr int kRegistersPerSm = 65536;
inline constexpr int kReservedSharedPerBlock = 1024;  // bytes that CUDA reserves in each block

// Returns every supported arch, the emulated ones (isa "emu") last.
const std::vector<Arch>& archs();

// Returns the row with this name. Throws SpecError, which lists the known names, if there is none.
const Arch& find_arch(std::string_view name);

// Returns the row whose code runs on a device of this compute capability. If there are several, it
// returns the one with the highest minor version. Throws SpecError if there is none.
const Arch& arch_for_device(int major, int minor);

}  // namespace lazyrope
