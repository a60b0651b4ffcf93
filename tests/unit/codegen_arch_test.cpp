#include <cuda_occupancy.h>
#include <gtest/gtest.h>

#include "codegen/arch.h"
#include "codegen/error.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

TEST(Arch, IsFoundByName) {
  for (const Arch& arch : archs()) EXPECT_EQ(&find_arch(arch.name), &arch);
}

TEST(Arch, AnUnknownNameIsAnErrorThatListsTheKnownNames) {
  const std::vector<std::string> known = {
      "sm_80, sm_86, sm_87, sm_89, sm_90a, sm_100, sm_103, sm_110, sm_120, sm_121, emu:sm_80"};
  for (const char* name : {"sm_75", "sm_90", "sm_100a", "", "SM_80"})
    EXPECT_TRUE(throws<SpecError>([&] { find_arch(name); },
                                  {"arch \"" + std::string(name) + "\" is unknown", known[0]}));
}

TEST(Arch, ADeviceGetsTheNewestCodeThatRunsOnIt) {
  struct Row {
    int major, minor;
    const char* arch;
  };
  for (const Row& row :
       {Row{8, 0, "sm_80"}, Row{8, 6, "sm_86"}, Row{8, 7, "sm_87"}, Row{8, 8, "sm_87"},
        Row{8, 9, "sm_89"}, Row{9, 0, "sm_90a"}, Row{10, 0, "sm_100"}, Row{10, 1, "sm_100"},
        Row{10, 3, "sm_103"}, Row{10, 7, "sm_103"}, Row{11, 0, "sm_110"}, Row{12, 0, "sm_120"},
        Row{12, 1, "sm_121"}})
    EXPECT_EQ(arch_for_device(row.major, row.minor).name, row.arch);
}

TEST(Arch, ADeviceThatNoCodeRunsOnIsRefused) {
  for (const auto& [major, minor] : {std::pair(7, 5), {9, 9}, {13, 0}})
    EXPECT_TRUE(throws<SpecError>(
        [&] { arch_for_device(major, minor); },
        {"compute capability " + std::to_string(major) + "." + std::to_string(minor),
         "lazyrope compiles for: sm_80, sm_86, sm_87"}));
}

// Returns the largest shared memory of an SM to which NVIDIA's calculator rounds up `bytes`, or 0
// if no SM of this arch has so much.
std::size_t shared_per_sm(const Arch& arch, std::size_t bytes) {
  cudaOccDeviceProp properties;
  properties.computeMajor = arch.major;
  properties.computeMinor = arch.minor;
  return cudaOccAlignUpShmemSizeVoltaPlus(&bytes, &properties) == CUDA_OCC_SUCCESS ? bytes : 0;
}

TEST(Arch, SharedMemoryIsThatOfNvidiasOccupancyCalculator) {
  for (const Arch& arch : archs()) {
    const auto bytes = static_cast<std::size_t>(arch.shared_per_sm);
    EXPECT_EQ(shared_per_sm(arch, bytes), bytes) << arch.name;
    EXPECT_EQ(shared_per_sm(arch, bytes + 1), 0u) << arch.name;
    EXPECT_EQ(arch.shared_per_block, arch.shared_per_sm - kReservedSharedPerBlock) << arch.name;
  }
}

}  // namespace
}  // namespace lazyrope
