#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/file_trust.h"
#include "runtime/base/log.h"

namespace lazyrope {

// The policy for a kernel that the cache does not have.
enum class CachePolicy {
  kJit,        // compile it
  kCacheOnly,  // refuse: for deployments where everything was precompiled
};

// "jit" or "cache_only".
std::string_view to_string(CachePolicy policy);

// Returns the value of an environment variable, or nullopt if it is not set.
using EnvironmentLookup = std::function<std::optional<std::string>(const char* name)>;

// Reads the process's environment. No other function of lazyrope does.
std::optional<std::string> process_environment(const char* name);

// One row of the table of environment variables.
struct ConfigVariable {
  std::string name;
  std::string meaning;
  std::string allowed;
  std::string default_value;
  std::optional<std::string> value;  // as set in the environment
  std::string fault = {};            // why the value cannot be used; empty: it can
};

// The settings that do not depend on a kernel. Plain data: an Engine copies it, so later changes
// have no effect on that engine.
struct Config {
  std::string cache_dir;  // absolute; empty: kernels are cached in memory only
  std::uint64_t cache_max_bytes = std::uint64_t{1} << 30;
  FileTrust cache_trust;  // the owners whose cache files are used; empty: this user and root
  std::vector<std::string> cache_layers;  // read-only directories, absolute; the first comes first
  CachePolicy policy = CachePolicy::kJit;
  bool cache_strict = false;  // do not use kernels that another version of the compiler made
  std::string trusted_key;    // the public key, or the file of such keys, that must sign packs
  std::string nvrtc_path;     // the only libnvrtc to use; empty: NvrtcLocator searches
  std::vector<std::string> nvrtc_directories;  // searched for NVRTC; lib folders of Python packages
  std::optional<LogLevel> log_level = {};      // unset if LAZYROPE_LOG is not set
  std::string host_compiler = "c++";           // command, for the emulator
  std::uint64_t emulator_seed = 0;             // seeds the order in which the emulator runs threads
  bool emulator_races = false;                 // the emulator looks for races
  std::string dump_dir;    // absolute directory for kernel sources; empty: none are written
  std::string trace_file;  // absolute path of the trace of calls; empty: there is none
  std::vector<ConfigVariable> environment;  // as read by from_environment()

  // Reads the variables that config_variables() lists; an empty value counts as not set. Throws
  // SpecError for a bad value.
  static Config from_environment(const EnvironmentLookup& lookup = process_environment);

  // Reads the same, and leaves the default in place of a bad value. `environment` has the faults.
  // Doctor uses it, because it must run whatever the variables hold.
  static Config from_environment_or_defaults(const EnvironmentLookup& lookup = process_environment);
};

// Returns a row for each environment variable that lazyrope reads, for `lazyrope doctor` and the
// README.
std::vector<ConfigVariable> config_variables(const EnvironmentLookup& lookup = process_environment);

// Returns the names in the process's environment that begin with LAZYROPE_ and that lazyrope does
// not read, in alphabetical order.
std::vector<std::string> unknown_variables();

}  // namespace lazyrope
