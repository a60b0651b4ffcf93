// The emulator gives what the GPU gave. Each test compiles one text and runs its rows.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include "runtime/emulator/device.h"
#include "tests/isa/recording.h"
#include "tests/isa/run_witness.h"

namespace lazyrope {

void PrintTo(const WitnessText& text, std::ostream* out) { *out << text.name; }

namespace {

class Replay : public testing::TestWithParam<WitnessText> {};

void expect_as_recorded(const WitnessRunner& runner, const Witness& witness) {
  const Words output = runner.run(witness, 0x00);
  EXPECT_EQ(differences(same_bits(), output, runner.run(witness, 0xff)), "")
      << witness.name << " does not give the same twice, or writes not all";
  const std::optional<Recording> recording = read_recording(witness);
  if (!recording) {
    ADD_FAILURE() << recording_path(witness) << " is missing: run record_isa on a GPU";
    return;
  }
  EXPECT_EQ(recording->witness, witness.name);
  EXPECT_EQ(recording->input_sha256, sha256_of(input_of(witness)))
      << witness.name << " has other input than was recorded: run record_isa on a GPU";
  EXPECT_EQ(differences(witness.rule, recording->output, output), "")
      << witness.name << ", recorded on " << recording->gpu;
}

TEST_P(Replay, IsAsRecorded) {
  if (!has_emulator()) GTEST_SKIP() << "this build has no emulator";
  const WitnessRunner runner(GetParam(), emulator_device());
  for (const Witness& witness : witnesses())
    if (witness.text == GetParam().name) expect_as_recorded(runner, witness);
}

// So that record_isa finds nothing to complain about.
TEST_P(Replay, CompilesForGpus) {
  const Arch& arch = find_arch(GetParam().least_arch);
  const Binary binary = witness_compiler(arch)->compile(render_witness(GetParam(), arch.isa), arch);
  EXPECT_FALSE(binary.code.empty());
}

INSTANTIATE_TEST_SUITE_P(Texts, Replay, testing::ValuesIn(witness_texts()),
                         [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace lazyrope
