#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/log.h"

namespace lazyrope {

// What to do about a kernel that the cache does not have.
enum class CachePolicy {
  kJit,        // compile it
  kCacheOnly,  // refuse: for deployments where everything was precompiled
};

// "jit" or "cache_only".
std::string_view to_string(CachePolicy policy);

// The value of an environment variable, or nothing.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

// Reads the process's environment. The only place in lazyrope that does.
std::optional<std::string> process_environment(const char* name);

// One row of the table of environment variables.
struct ConfigVariable {
  std::string name;
  std::string meaning;
  std::string allowed;
  std::string default_value;
  std::optional<std::string> value;  // as set in the environment
};

// Everything about lazyrope that does not depend on a kernel.
struct Config {
  std::string cache_dir;  // absolute; empty: kernels are cached in memory only
  std::uint64_t cache_max_bytes = std::uint64_t{1} << 30;
  CachePolicy policy = CachePolicy::kJit;
  std::string nvrtc_path;  // a libnvrtc to use and no other; empty: NvrtcLocator searches
  std::vector<std::string> nvrtc_directories;  // searched; set by Python, no variable
  std::optional<LogLevel> log_level = {};      // as it was, where LAZYROPE_LOG is not set
  std::string host_compiler = "c++";           // command, for the emulator
  std::uint64_t emulator_seed = 0;             // of the order in which the emulator runs threads
  bool emulator_races = false;                 // whether it looks for races
  std::string dump_dir;  // absolute; where kernel sources are written; empty: nowhere
  std::vector<ConfigVariable> environment;  // as it was read; empty: it was not

  // Reads the variables that config_variables() lists; an empty value counts as not set. Throws
  // SpecError for a bad value.
  static Config from_environment(const EnvironmentLookup& lookup = process_environment);
};

// All environment variables that lazyrope reads, for `lazyrope doctor` and the README.
std::vector<ConfigVariable> config_variables(const EnvironmentLookup& lookup = process_environment);

}  // namespace lazyrope
