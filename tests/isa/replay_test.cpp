// The emulator's output agrees with the GPU's recorded output. Each test compiles one conformance
// kernel and runs its cases.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/emulator/device.h"
#include "tests/isa/conformance_runner.h"
#include "tests/isa/recording.h"

namespace lazyrope {

void PrintTo(const ConformanceKernel& kernel, std::ostream* out) { *out << kernel.name; }

namespace {

class Replay : public testing::TestWithParam<ConformanceKernel> {};

void expect_as_recorded(const ConformanceRunner& runner, const ConformanceCase& test_case) {
  const Words output = runner.run(test_case, 0x00);
  EXPECT_EQ(differences(same_bits(), output, runner.run(test_case, 0xff)), "")
      << test_case.name << " gives two different outputs, or does not write all of its output";
  const std::optional<Recording> recording = read_recording(test_case);
  if (!recording) {
    ADD_FAILURE() << recording_path(test_case) << " is missing: run record_isa on a GPU";
    return;
  }
  EXPECT_EQ(recording->name, test_case.name);
  EXPECT_EQ(recording->input_sha256, sha256_of(input_of(test_case)))
      << test_case.name << " was recorded with other input: run record_isa on a GPU";
  EXPECT_EQ(differences(test_case.rule, recording->output, output), "")
      << test_case.name << ", recorded on " << recording->gpu;
}

TEST_P(Replay, EmulatedOutputAgreesWithRecording) {
  if (!has_emulator()) GTEST_SKIP() << "this build has no emulator";
  const ConformanceRunner runner(GetParam(), emulator_device());
  for (const ConformanceCase& test_case : conformance_cases())
    if (test_case.kernel == GetParam().name) expect_as_recorded(runner, test_case);
}

// record_isa compiles the same source on a GPU, so it must not fail there.
TEST_P(Replay, KernelCompilesForItsLeastArch) {
  const Arch& arch = find_arch(GetParam().least_arch);
  const Binary binary =
      conformance_compiler(arch)->compile(render_conformance_kernel(GetParam(), arch.isa), arch);
  EXPECT_FALSE(binary.code.empty());
}

INSTANTIATE_TEST_SUITE_P(Kernels, Replay, testing::ValuesIn(conformance_kernels()),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace lazyrope
