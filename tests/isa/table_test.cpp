// Every wrapper of templates/isa has a conformance case, and every recording belongs to a case.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/isa/conformance_cases.h"
#include "tests/isa/recording.h"
#include "tests/isa/wrappers.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxBytes = std::uintmax_t{2} << 20;  // all recordings together

std::string text_of(const std::string& name) {
  std::ifstream in(fmt::format("{}/isa/kernels/{}.cuh", LAZYROPE_TEST_SOURCE_DIR, name));
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Wrappers, EveryKindOfDefinitionIsFound) {
  const auto found = wrappers_in(
      "#define LAZYROPE_DEVICE_CALL __device__ __noinline__\n"
      "// LAZYROPE_DEVICE int none();\n"
      "LAZYROPE_DEVICE void bar_sync() { asm(\"\"); }\n"
      "template <class T>\nLAZYROPE_DEVICE T ld(const T* p) {\n  return f(*p);\n}\n"
      "LAZYROPE_DEVICE SharedPtr operator+(SharedPtr p, int32 bytes) {}\n"
      "struct S {\n  LAZYROPE_DEVICE float& operator[](int i);\n};\n"
      "LAZYROPE_DEVICE void mma_m16n8k16_f32_bf16(float (&d)[4], const uint32 (&a)[4]) {}\n");
  EXPECT_EQ(found, (std::set<std::string>{"bar_sync", "ld", "operator+", "operator[]",
                                          "mma_m16n8k16_f32_bf16"}));
}

TEST(Wrappers, EveryWrapperHasAConformanceKernel) {
  std::set<std::string> missing = all_wrappers();
  EXPECT_GE(missing.size(), 40u);
  for (const ConformanceCase& test_case : conformance_cases())
    for (const std::string& wrapper : test_case.wrappers) missing.erase(wrapper);
  EXPECT_TRUE(missing.empty()) << "without a case in tests/isa/rows: "
                               << fmt::format("{}", fmt::join(missing, ", "));
}

TEST(ConformanceCases, KernelCallsEveryWrapperThatTheCaseNames) {
  const std::set<std::string> wrappers = all_wrappers();
  for (const ConformanceCase& test_case : conformance_cases()) {
    EXPECT_FALSE(test_case.wrappers.empty()) << test_case.name;
    for (const std::string& wrapper : test_case.wrappers) {
      EXPECT_TRUE(wrappers.contains(wrapper)) << test_case.name << ": " << wrapper << " is unknown";
      EXPECT_TRUE(names_wrapper(text_of(test_case.kernel), wrapper))
          << test_case.kernel << ".cuh does not call " << wrapper;
    }
  }
}

TEST(ConformanceCases, NamesAreUniqueAndKernelsExist) {
  std::set<std::string> kernels;
  for (const ConformanceKernel& kernel : conformance_kernels())
    EXPECT_TRUE(kernels.insert(kernel.name).second);
  std::set<std::string> names;
  for (const ConformanceCase& test_case : conformance_cases()) {
    EXPECT_TRUE(names.insert(test_case.name).second) << test_case.name;
    EXPECT_TRUE(kernels.contains(test_case.kernel)) << test_case.name << ": " << test_case.kernel;
  }
}

TEST(ConformanceCases, InputIsTheSameEachTime) {
  for (const ConformanceCase& test_case : conformance_cases())
    EXPECT_EQ(input_of(test_case), input_of(test_case)) << test_case.name;
}

TEST(Recordings, EveryRecordingBelongsToACase) {
  const fs::path folder = fs::path(LAZYROPE_TEST_SOURCE_DIR) / "isa" / "recordings";
  if (!fs::exists(folder)) GTEST_FAIL() << folder << " is missing: run record_isa on a GPU";
  std::uintmax_t bytes = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
    bytes += file.file_size();
    EXPECT_TRUE(std::ranges::any_of(
        conformance_cases(),
        [&](const ConformanceCase& test_case) { return recording_path(test_case) == file.path(); }))
        << file.path() << " belongs to no conformance case: remove it";
  }
  EXPECT_LE(bytes, kMaxBytes);
}

}  // namespace
}  // namespace lazyrope
