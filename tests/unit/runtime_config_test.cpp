#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <stdexcept>
#include <thread>

#include "codegen/error.h"
#include "runtime/base/config.h"
#include "runtime/base/log.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

using Environment = std::map<std::string, std::string>;

EnvironmentLookup lookup_in(Environment environment) {
  return [environment = std::move(environment)](const char* name) -> std::optional<std::string> {
    const auto found = environment.find(name);
    return found == environment.end() ? std::nullopt : std::optional(found->second);
  };
}

Config read(Environment environment) {
  return Config::from_environment(lookup_in(std::move(environment)));
}

std::string error_of(Environment environment) {
  try {
    read(std::move(environment));
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  return "no error";
}

TEST(Config, HasDefaultsWithoutAnyVariable) {
  const Config config = read({});
  EXPECT_EQ(config.cache_dir, "");
  EXPECT_EQ(config.cache_max_bytes, 1u << 30);
  EXPECT_EQ(config.policy, CachePolicy::kJit);
  EXPECT_EQ(config.nvrtc_path, "");
  EXPECT_EQ(config.host_compiler, "c++");
  EXPECT_EQ(config.log_level, std::nullopt);
  EXPECT_EQ(config.dump_dir, "");
  EXPECT_EQ(config.trace_file, "");
}

TEST(Config, TakesTheCacheDirectoryFromXdgBeforeHome) {
  EXPECT_EQ(read({{"HOME", "/home/u"}}).cache_dir, "/home/u/.cache/lazyrope");
  EXPECT_EQ(read({{"HOME", "/home/u"}, {"XDG_CACHE_HOME", "/x/"}}).cache_dir, "/x/lazyrope");
  EXPECT_EQ(read({{"HOME", "/home/u"}, {"XDG_CACHE_HOME", "relative"}}).cache_dir,
            "/home/u/.cache/lazyrope");
  EXPECT_EQ(read({{"HOME", "/home/u"}, {"LAZYROPE_CACHE_DIR", "/c"}}).cache_dir, "/c");
  EXPECT_EQ(read({{"HOME", ""}}).cache_dir, "");
}

TEST(Config, MakesPathsAbsolute) {
  const auto here = std::filesystem::current_path();
  EXPECT_EQ(read({{"LAZYROPE_CACHE_DIR", "./cache"}}).cache_dir, (here / "cache").string());
  EXPECT_EQ(read({{"LAZYROPE_DUMP_DIR", "dump"}}).dump_dir, (here / "dump").string());
}

TEST(Config, ARelativePathNeedsACurrentDirectory) {
  const auto before = std::filesystem::current_path();
  {
    const TemporaryDirectory gone;
    std::filesystem::current_path(gone.path());
  }
  const bool is_refused = throws<SpecError>([] { read({{"LAZYROPE_CACHE_DIR", "cache"}}); },
                                            {"cache is relative", "an absolute path"});
  std::filesystem::current_path(before);
  EXPECT_TRUE(is_refused);
}

TEST(Config, CacheDirNoneMeansMemoryOnly) {
  EXPECT_EQ(read({{"HOME", "/home/u"}, {"LAZYROPE_CACHE_DIR", "none"}}).cache_dir, "");
}

TEST(Config, ReadsEveryVariable) {
  const Config config = read({{"LAZYROPE_CACHE_DIR", "/c"},
                              {"LAZYROPE_CACHE_MAX_BYTES", "512M"},
                              {"LAZYROPE_CACHE_TRUST", "1000, root,group:0"},
                              {"LAZYROPE_POLICY", "cache_only"},
                              {"LAZYROPE_TRUSTED_KEY", "/k.pub"},
                              {"LAZYROPE_NVRTC", "/n/libnvrtc.so.13"},
                              {"LAZYROPE_CXX", "ccache g++-12"},
                              {"LAZYROPE_EMULATOR_SEED", "17"},
                              {"LAZYROPE_EMULATOR_RACES", "1"},
                              {"LAZYROPE_LOG", "debug"},
                              {"LAZYROPE_DUMP_DIR", "/d"},
                              {"LAZYROPE_TRACE", "/t.json"}});
  EXPECT_EQ(config.cache_dir, "/c");
  EXPECT_EQ(config.cache_max_bytes, 512u << 20);
  EXPECT_EQ(config.cache_trust.text(), "0,1000,group:0");
  EXPECT_EQ(config.policy, CachePolicy::kCacheOnly);
  EXPECT_EQ(config.trusted_key, "/k.pub");
  EXPECT_EQ(config.nvrtc_path, "/n/libnvrtc.so.13");
  EXPECT_EQ(config.host_compiler, "ccache g++-12");
  EXPECT_EQ(config.emulator_seed, 17u);
  EXPECT_TRUE(config.emulator_races);
  EXPECT_EQ(config.log_level, LogLevel::kDebug);
  EXPECT_EQ(config.dump_dir, "/d");
  EXPECT_EQ(config.trace_file, "/t.json");
}

TEST(Config, TrustHasNoWordForEveryone) {
  for (const char* text : {"any", "*", "group:", "group:any", "1000,", ",1000", "-1", "4294967295",
                           "1000 1001", "group:-1", "user:1000"}) {
    const std::string error = error_of({{"LAZYROPE_CACHE_TRUST", text}});
    EXPECT_TRUE(says(error, {"LAZYROPE_CACHE_TRUST='", "is not allowed: give users and groups"}));
  }
}

TEST(Config, ReadsByteCounts) {
  const auto bytes = [](const char* text) {
    return read({{"LAZYROPE_CACHE_MAX_BYTES", text}}).cache_max_bytes;
  };
  EXPECT_EQ(bytes("0"), 0u);
  EXPECT_EQ(bytes("1048577"), 1048577u);
  EXPECT_EQ(bytes("64K"), 65536u);
  EXPECT_EQ(bytes("2G"), std::uint64_t{2} << 30);
  EXPECT_EQ(bytes("2g"), std::uint64_t{2} << 30);
  EXPECT_EQ(bytes("3T"), std::uint64_t{3} << 40);
  EXPECT_EQ(bytes("18446744073709551615"), ~std::uint64_t{0});
}

TEST(Config, RefusesBadByteCounts) {
  for (const char* text :
       {"G", "-1", "1.5G", "12X", "1 G", "2GB", "18446744073709551616", "16777216T", " 1"}) {
    EXPECT_NE(error_of({{"LAZYROPE_CACHE_MAX_BYTES", text}}), "no error") << text;
  }
}

TEST(Config, ABadValueNamesVariableValueAndWhatIsAllowed) {
  EXPECT_EQ(error_of({{"LAZYROPE_POLICY", "JIT"}}),
            "LAZYROPE_POLICY='JIT' is not allowed: give jit or cache_only, or unset it for the "
            "default (jit)");
  EXPECT_EQ(error_of({{"LAZYROPE_LOG", "loud"}}),
            "LAZYROPE_LOG='loud' is not allowed: give off, warning, info or debug, or unset it for "
            "the default (warning)");
}

TEST(Config, DefaultsStandForBadValuesIfFaultsAreOnlyNoted) {
  const Config config = Config::from_environment_or_defaults(lookup_in(
      {{"LAZYROPE_LOG", "loud"}, {"LAZYROPE_POLICY", "cache_only"}, {"LAZYROPE_CACHE_DIR", "/c"}}));
  EXPECT_EQ(config.log_level, std::nullopt);
  EXPECT_EQ(config.policy, CachePolicy::kCacheOnly);
  EXPECT_EQ(config.cache_dir, "/c");
  for (const ConfigVariable& row : config.environment)
    EXPECT_EQ(row.fault.empty(), row.name != "LAZYROPE_LOG") << row.name;
}

TEST(Config, UnknownVariablesAreThoseThatNoRowOfTheTableHas) {
  setenv("LAZYROPE_FROBNICATE", "", 1);
  setenv("LAZYROPE_LOG", "info", 1);
  const std::vector<std::string> names = unknown_variables();
  unsetenv("LAZYROPE_FROBNICATE");
  unsetenv("LAZYROPE_LOG");
  EXPECT_EQ(std::ranges::count(names, "LAZYROPE_FROBNICATE"), 1);
  EXPECT_EQ(std::ranges::count(names, "LAZYROPE_LOG"), 0);
  EXPECT_TRUE(std::ranges::is_sorted(names));
}

TEST(Config, AnEmptyValueCountsAsNotSet) {
  EXPECT_EQ(read({{"LAZYROPE_LOG", ""}, {"LAZYROPE_CACHE_MAX_BYTES", ""}}).log_level, std::nullopt);
}

TEST(Config, TheTableShowsTheValuesThatAreSet) {
  const auto rows = config_variables(lookup_in({{"LAZYROPE_LOG", "info"}, {"HOME", "/home/u"}}));
  ASSERT_FALSE(rows.empty());
  for (const ConfigVariable& row : rows) {
    EXPECT_EQ(row.name.rfind("LAZYROPE_", 0), 0u) << row.name;
    EXPECT_FALSE(row.meaning.empty() || row.allowed.empty() || row.default_value.empty());
    EXPECT_EQ(row.value.has_value(), row.name == "LAZYROPE_LOG");
  }
}

TEST(Config, TheTablesDefaultsAreTheRealOnes) {
  const Config unset = read({});
  for (const ConfigVariable& row : config_variables(lookup_in({}))) {
    if (row.name == "LAZYROPE_CACHE_TRUST") continue;  // no value means no one
    const Config set = read({{row.name, row.default_value}});
    if (row.name == "LAZYROPE_CACHE_MAX_BYTES") {
      EXPECT_EQ(set.cache_max_bytes, unset.cache_max_bytes);
    } else if (row.name == "LAZYROPE_POLICY") {
      EXPECT_EQ(set.policy, unset.policy);
    } else if (row.name == "LAZYROPE_CXX") {
      EXPECT_EQ(set.host_compiler, unset.host_compiler);
    } else if (row.name == "LAZYROPE_EMULATOR_SEED") {
      EXPECT_EQ(set.emulator_seed, unset.emulator_seed);
    } else if (row.name == "LAZYROPE_EMULATOR_RACES") {
      EXPECT_EQ(set.emulator_races, unset.emulator_races);
    } else if (row.name == "LAZYROPE_LOG") {
      EXPECT_EQ(set.log_level, LogLevel::kWarning);  // the default level
    }
  }
}

TEST(Config, ReadsTheProcessEnvironmentByDefault) {
  setenv("LAZYROPE_LOG", "info", 1);
  EXPECT_EQ(Config::from_environment().log_level, LogLevel::kInfo);
  unsetenv("LAZYROPE_LOG");
  EXPECT_EQ(Config::from_environment().log_level, std::nullopt);
}

class Log : public testing::Test {
 protected:
  void TearDown() override {
    set_log_sink({});
    log_to_stderr(LogLevel::kWarning);
  }
};

TEST_F(Log, WarningsGoToStderrAndTheRestNowhereByDefault) {
  testing::internal::CaptureStderr();
  log_message(LogLevel::kWarning, "disk {} is full", 7);
  log_message(LogLevel::kInfo, "compiled");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "lazyrope: warning: disk 7 is full\n");
}

TEST_F(Log, TheLevelDecidesWhatReachesTheSink) {
  std::string seen;
  set_log_sink([&](LogLevel level, std::string_view message) {
    seen += std::string(to_string(level)) + ":" + std::string(message) + ";";
  });
  const auto log_all = [] {
    log_message(LogLevel::kWarning, "w");
    log_message(LogLevel::kInfo, "i");
    log_message(LogLevel::kDebug, "d");
  };
  set_log_level(LogLevel::kOff);
  log_all();
  EXPECT_EQ(seen, "");
  set_log_level(LogLevel::kInfo);
  log_all();
  EXPECT_EQ(seen, "warning:w;info:i;");
  set_log_level(LogLevel::kDebug);
  log_all();
  EXPECT_EQ(seen, "warning:w;info:i;warning:w;info:i;debug:d;");
}

TEST_F(Log, TheDefaultSinkGetsMessagesOfEveryLevelUntilTheyGoToStderr) {
  std::string seen;
  const auto log_all = [] {
    log_message(LogLevel::kWarning, "w");
    log_message(LogLevel::kDebug, "d");
  };
  set_default_log_sink([&](LogLevel level, std::string_view message) {
    seen += std::string(to_string(level)) + ":" + std::string(message) + ";";
  });
  log_all();
  EXPECT_EQ(seen, "warning:w;debug:d;");
  set_log_sink([&](LogLevel, std::string_view) { seen += "sink;"; });
  log_all();
  EXPECT_EQ(seen, "warning:w;debug:d;sink;sink;") << "a sink comes first";
  set_log_sink({});
  log_to_stderr(LogLevel::kWarning);
  testing::internal::CaptureStderr();
  log_all();
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "lazyrope: warning: w\n");
  EXPECT_EQ(seen, "warning:w;debug:d;sink;sink;");
}

TEST_F(Log, ASinkThatThrowsDoesNotReachTheCaller) {
  set_log_sink([](LogLevel, std::string_view) { throw std::runtime_error("closed"); });
  EXPECT_NO_THROW(log_message(LogLevel::kWarning, "w"));
}

TEST_F(Log, ASinkMayReplaceTheSink) {
  int calls = 0;
  set_log_sink([&](LogLevel, std::string_view) {
    ++calls;
    set_log_sink([](LogLevel, std::string_view) {});
  });
  log_message(LogLevel::kWarning, "first");
  log_message(LogLevel::kWarning, "second");
  EXPECT_EQ(calls, 1);
}

TEST_F(Log, ThreadsMayLogWhileTheSinkChanges) {
  std::atomic<int> calls = 0;
  const auto count = [&](LogLevel, std::string_view) { ++calls; };
  set_log_sink(count);
  const auto log_many = [] {
    for (int i = 0; i < 1000; ++i) log_message(LogLevel::kWarning, "{}", i);
  };
  std::thread first(log_many);
  std::thread second(log_many);
  for (int i = 0; i < 1000; ++i) set_log_sink(count);
  first.join();
  second.join();
  EXPECT_EQ(calls, 2000);
}

}  // namespace
}  // namespace lazyrope
