#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "runtime/driver/nvrtc.h"
#include "runtime/driver/ptxas_log.h"

namespace lazyrope {
namespace {

// This log is from NVRTC 13.0.88 with --ptxas-options=-v --ptxas-options=--warn-on-spills,
// shortened.
constexpr const char* kStoredLog =
    R"(k.cu(9): warning #177-D: variable "x" was declared but never referenced
  int x;
      ^

ptxas info    : Overriding maximum register limit 256 for 'spills' with  32 of maxrregcount option
ptxas info    : (C7508) Potential Performance Loss: 'setmaxnreg' ignored; unable to determine register count at entry.
ptxas warning : Registers are spilled to local memory in function 'spills', 780 bytes spill stores, 804 bytes spill loads
ptxas info    : 0 bytes gmem, 256 bytes cmem[3]
ptxas info    : Compiling entry function 'spills' for 'sm_80'
ptxas info    : Function properties for spills
ptxas         .     296 bytes stack frame, 780 bytes spill stores, 804 bytes spill loads
ptxas info    : Used 32 registers, used 0 barriers, 296 bytes cumulative stack size, 372 bytes cmem[0], 8 bytes cmem[2]
ptxas info    : Compile time = 26.072 ms
ptxas info    : Function properties for _Z6helperPfi
ptxas         .     16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Compiling entry function 'clean' for 'sm_80'
ptxas info    : Function properties for clean
ptxas         .     0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 14 registers, used 1 barriers, 1024 bytes smem, 372 bytes cmem[0]
ptxas info    : Compile time = 1.244 ms)";

TEST(PtxasLog, ReadsEveryFunctionOfAStoredLog) {
  const std::vector<PtxasFunction> functions = parse_ptxas_log(kStoredLog);
  ASSERT_EQ(functions.size(), 3u);
  const PtxasFunction spills = {.name = "spills",
                                .is_kernel = true,
                                .stack_bytes = 296,
                                .spill_store_bytes = 780,
                                .spill_load_bytes = 804,
                                .registers = 32};
  const PtxasFunction helper = {
      .name = "_Z6helperPfi", .stack_bytes = 16, .spill_store_bytes = 4, .spill_load_bytes = 8};
  const PtxasFunction clean = {.name = "clean", .is_kernel = true, .registers = 14};
  EXPECT_EQ(functions[0], spills);
  EXPECT_EQ(functions[1], helper);
  EXPECT_EQ(functions[2], clean);
}

TEST(PtxasLog, IgnoresUnknownLines) {
  for (const char* text :
       {"", "\n\n", "ptxas ", "ptxas info    :", "ptxas fatal   : Unknown option 'v,x'",
        "ptxas info    : Used 12 registers", "ptxas         .     0 bytes stack frame",
        "k.cu(1): error: Used 12 registers"}) {
    EXPECT_TRUE(parse_ptxas_log(text).empty()) << text;
  }
}

// Each thread of `crowded` updates 64 values. The update of one value reads another one, so each
// value needs a register of its own.
constexpr const char* kKernels = R"(
extern "C" __global__ void crowded(float* out, const float* in, int n) {
  float a[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) a[i] = in[i * n + threadIdx.x];
#pragma unroll 1
  for (int k = 0; k < n; ++k) {
#pragma unroll
    for (int i = 0; i < 64; ++i) a[i] = a[i] * a[(i + 7) % 64] + in[k];
  }
#pragma unroll
  for (int i = 0; i < 64; ++i) out[i * n + threadIdx.x] = a[i];
}
extern "C" __global__ void roomy(float* out, const float* in) {
  out[threadIdx.x] = in[threadIdx.x];
}
)";

std::vector<PtxasFunction> compile_kernels(const char* arch, const char* register_limit) {
  NvrtcLocator locator({.configured = LAZYROPE_TEST_NVRTC_DIR "/libnvrtc.so.13"});
  const CompiledProgram compiled = compile_program(
      locator.library(),
      {"kernels.cu",
       kKernels,
       {std::string("--gpu-architecture=") + arch, std::string("--maxrregcount=") + register_limit,
        "--ptxas-options=-v", "--ptxas-options=--warn-on-spills"}});
  return parse_ptxas_log(compiled.log);
}

// Returns the function of that name, or one without a name if there is none.
PtxasFunction find(const std::vector<PtxasFunction>& functions, const std::string& name) {
  for (const PtxasFunction& function : functions)
    if (function.name == name) return function;
  return {};
}

class RealPtxasLog : public testing::TestWithParam<const char*> {};

TEST_P(RealPtxasLog, SeesSpillsUnderARegisterLimit) {
  const std::vector<PtxasFunction> functions = compile_kernels(GetParam(), "32");
  ASSERT_EQ(functions.size(), 2u);
  const PtxasFunction crowded = find(functions, "crowded");
  EXPECT_TRUE(crowded.is_kernel);
  EXPECT_GT(crowded.registers, 0);
  EXPECT_LE(crowded.registers, 32);
  EXPECT_GT(crowded.spill_store_bytes, 0);
  EXPECT_GT(crowded.spill_load_bytes, 0);
  EXPECT_GT(crowded.stack_bytes, 0);
  const PtxasFunction roomy = find(functions, "roomy");
  EXPECT_TRUE(roomy.is_kernel);
  EXPECT_GT(roomy.registers, 0);
  EXPECT_EQ(roomy.spill_store_bytes + roomy.spill_load_bytes + roomy.stack_bytes, 0);
}

TEST_P(RealPtxasLog, SeesNoSpillsWithoutALimit) {
  const PtxasFunction crowded = find(compile_kernels(GetParam(), "255"), "crowded");
  EXPECT_TRUE(crowded.is_kernel);
  EXPECT_GT(crowded.registers, 64);
  EXPECT_EQ(crowded.spill_store_bytes + crowded.spill_load_bytes + crowded.stack_bytes, 0);
}

INSTANTIATE_TEST_SUITE_P(Archs, RealPtxasLog, testing::Values("sm_80", "sm_90a", "sm_120a"),
                         [](const auto& arch) { return std::string(arch.param); });

}  // namespace
}  // namespace lazyrope
