#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "runtime/base/version.h"
#include "runtime/doctor.h"
#include "runtime/emulator/device.h"
#include "runtime/engine/devices.h"
#include "tests/support/engines.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

using Json = nlohmann::ordered_json;

std::vector<std::string> keys_of(const Json& object) {
  std::vector<std::string> keys;
  for (const auto& entry : object.items()) keys.push_back(entry.key());
  return keys;
}

TEST(Doctor, ReportsEveryPart) {
  const TemporaryDirectory directory;
  Engine engine(test_config(directory.path()));
  const Json facts = doctor(engine).facts;
  EXPECT_EQ(keys_of(facts),
            (std::vector<std::string>{"version", "nvrtc", "driver", "emulator", "cache",
                                      "environment", "unknown_variables", "archs"}));
  EXPECT_EQ(facts["version"], version());
  EXPECT_EQ(facts["archs"], compilable_archs());
  EXPECT_TRUE(facts["driver"].contains("missing") || !facts["driver"]["gpus"].empty());
}

TEST(Doctor, NamesTheNvrtcThatWasChosenAndWhereItWasLookedFor) {
  Engine engine(test_config());
  const Diagnosis diagnosis = doctor(engine);
  const Json& nvrtc = diagnosis.facts["nvrtc"];
  EXPECT_EQ(keys_of(nvrtc),
            (std::vector<std::string>{"tried", "path", "builtins", "version", "identity"}));
  EXPECT_TRUE(says(nvrtc["path"].get<std::string>(), {"libnvrtc.so"}));
  const Json& chosen = nvrtc["tried"].back();
  EXPECT_EQ(keys_of(chosen), (std::vector<std::string>{"location", "file", "outcome"}));
  EXPECT_TRUE(says(chosen["outcome"].get<std::string>(), {"opened: "}));
  EXPECT_TRUE(says(diagnosis.text(),
                   {"lazyrope " + std::string(version()), "NVRTC\n", "chosen: ", "driver\n",
                    "cache\n", "none (memory only)", "environment\n", "compiles for: sm_80, "}));
}

TEST(Doctor, SaysWhatAMissingNvrtcMeans) {
  Config config = test_config();
  config.nvrtc_path = "/nonexistent/libnvrtc.so";
  Engine engine(config);
  const Diagnosis diagnosis = doctor(engine);
  EXPECT_TRUE(says(diagnosis.facts["nvrtc"]["missing"].get<std::string>(),
                   {"cannot be compiled", "pip install", "LAZYROPE_NVRTC"}));
  EXPECT_TRUE(says(diagnosis.text(), {"/nonexistent/libnvrtc.so", "no NVRTC: "}));
}

TEST(Doctor, NamesTheCompilerOfTheEmulator) {
  if (!has_emulator()) GTEST_SKIP() << "this build has no emulator";
  Engine engine(test_config());
  EXPECT_TRUE(says(doctor(engine).text(), {"emulator\n  builds kernels with c++ ["}));
  Config config = test_config();
  config.host_compiler = "no-such-compiler";
  Engine without(config);
  EXPECT_TRUE(
      says(doctor(without).text(), {"emulator\n  no C++20 compiler", "tried \"no-such-compiler\"",
                                    "apt-get install g++", "LAZYROPE_CXX"}));
}

TEST(Doctor, CountsTheCachesEntries) {
  const TemporaryDirectory directory;
  Engine engine(test_config(directory.path()));
  const Key key = KeyBuilder().field("arch", "sm_80").finish();
  ASSERT_TRUE(engine.store().store(key, {R"({"entry":"x"})", std::vector<std::byte>(100)}).stored);
  std::ofstream(directory / (std::string(64, 'a') + ".lzr")) << "not an entry";
  const Json cache = doctor(engine).facts["cache"];
  EXPECT_EQ(cache["directory"], directory.path().string());
  EXPECT_EQ(cache["policy"], "jit");
  EXPECT_EQ(cache["max_bytes"], 1 << 30);
  EXPECT_EQ(cache["entries"], 2);
  EXPECT_EQ(cache["bad_entries"], 1);
  EXPECT_GT(cache["bytes"], 100);
}

TEST(Doctor, ACacheThatCannotBeReadIsAProblemAndNoError) {
  const TemporaryDirectory directory;
  std::ofstream(directory / "file") << "text";
  Engine engine(test_config(directory / "file"));
  const Diagnosis diagnosis = doctor(engine);
  EXPECT_TRUE(says(diagnosis.facts["cache"]["problem"].get<std::string>(), {"cannot list"}));
  EXPECT_TRUE(says(diagnosis.text(), {"cannot list"}));
}

TEST(Doctor, ShowsTheVariablesOfTheEnvironment) {
  Engine engine(test_config());
  const Json environment = doctor(engine).facts["environment"];
  ASSERT_EQ(environment.size(), config_variables().size());
  for (const Json& variable : environment)
    EXPECT_EQ(keys_of(variable), (std::vector<std::string>{"name", "value", "now", "fault",
                                                           "default", "meaning", "allowed"}));
}

TEST(Doctor, ReportsValuesThatCannotBeUsedAndGoesOnWithTheDefaults) {
  const auto lookup = [](const char* name) {
    return std::string_view(name) == "LAZYROPE_POLICY" ? std::optional<std::string>("maybe")
                                                       : std::nullopt;
  };
  Engine engine(Config::from_environment_or_defaults(lookup));
  const Diagnosis diagnosis = doctor(engine);
  EXPECT_EQ(diagnosis.facts["cache"]["policy"], "jit");
  ASSERT_EQ(diagnosis.variable_faults().size(), 1u);
  EXPECT_TRUE(says(diagnosis.variable_faults()[0], {"LAZYROPE_POLICY='maybe' is not allowed"}));
  EXPECT_TRUE(says(diagnosis.text(), {"    LAZYROPE_POLICY='maybe' is not allowed: give jit"}));
}

TEST(Doctor, NamesTheVariableThatAnUnknownOneIsLikelyMeantToBe) {
  setenv("LAZYROPE_CACHEDIR", "/x", 1);
  Engine engine(test_config());
  const Diagnosis diagnosis = doctor(engine);
  unsetenv("LAZYROPE_CACHEDIR");
  const Json& unknown = diagnosis.facts["unknown_variables"];
  const auto found = std::find_if(unknown.begin(), unknown.end(), [](const Json& variable) {
    return variable["name"] == "LAZYROPE_CACHEDIR";
  });
  ASSERT_NE(found, unknown.end());
  EXPECT_EQ((*found)["nearest"], "LAZYROPE_CACHE_DIR");
  EXPECT_TRUE(
      says(diagnosis.text(), {"lazyrope does not read it (did you mean LAZYROPE_CACHE_DIR?)"}));
}

TEST(Doctor, ReportsVariablesThatWereSetTooLate) {
  const auto lookup = [](const char* name) {
    return std::string_view(name) == "LAZYROPE_CXX" ? std::optional<std::string>("clang++-99")
                                                    : std::nullopt;
  };
  Config config = Config::from_environment(lookup);
  config.nvrtc_directories = test_config().nvrtc_directories;
  Engine engine(config);
  const Diagnosis diagnosis = doctor(engine);
  EXPECT_TRUE(says(diagnosis.text(), {"clang++-99; now ", ", too late for this process"}));
  for (const Json& variable : diagnosis.facts["environment"])
    EXPECT_EQ(variable["value"].is_null(), variable["name"] != "LAZYROPE_CXX");
}

}  // namespace
}  // namespace lazyrope
