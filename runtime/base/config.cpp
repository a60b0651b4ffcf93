#include "runtime/base/config.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <iterator>
#include <limits>
#include <string_view>
#include <system_error>
#include <utility>

#include "codegen/error.h"

namespace lazyrope {
namespace {

constexpr std::string_view kMemoryOnly = "none";

std::optional<std::string> non_empty(const EnvironmentLookup& lookup, const char* name) {
  std::optional<std::string> value = lookup(name);
  return value && !value->empty() ? value : std::nullopt;
}

std::string absolute_path(const std::string& path) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(path, error);
  if (error)
    throw SpecError(
        fmt::format("{} is relative, and the current directory cannot be found ({}): give an "
                    "absolute path",
                    path, error.message()));
  return absolute.lexically_normal().string();
}

// Returns the absolute paths of a list with colons, or none if one of them is empty.
std::vector<std::string> absolute_paths(const std::string& text) {
  std::vector<std::string> paths;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(':', begin), text.size());
    if (end == begin) return {};
    paths.push_back(absolute_path(text.substr(begin, end - begin)));
    begin = end + 1;
  }
  return paths;
}

// The XDG base directory specification says to ignore relative values.
std::string default_cache_dir(const EnvironmentLookup& lookup) {
  const auto below = [&](const char* variable, const char* folder) -> std::string {
    const auto root = non_empty(lookup, variable);
    if (!root || !std::filesystem::path(*root).is_absolute()) return "";
    return absolute_path(*root + folder);
  };
  std::string dir = below("XDG_CACHE_HOME", "/lazyrope");
  return dir.empty() ? below("HOME", "/.cache/lazyrope") : dir;
}

// Returns the shift for a unit K, M, G or T of either case, or nullopt for another character.
std::optional<int> unit_shift(char unit) {
  constexpr std::string_view kUnits = "KkMmGgTt";
  const auto at = kUnits.find(unit);
  if (at == std::string_view::npos) return std::nullopt;
  return 10 * (static_cast<int>(at) / 2 + 1);
}

std::optional<std::uint64_t> parse_count(std::string_view text) {
  std::uint64_t count = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), count);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return count;
}

std::optional<std::uint64_t> parse_bytes(std::string_view text) {
  int shift = 0;
  if (const auto unit = text.empty() ? std::nullopt : unit_shift(text.back())) {
    shift = *unit;
    text.remove_suffix(1);
  }
  const auto count = parse_count(text);
  if (!count || *count > std::numeric_limits<std::uint64_t>::max() >> shift) return std::nullopt;
  return *count << shift;
}

std::optional<bool> parse_flag(std::string_view text) {
  return text == "0" || text == "1" ? std::optional(text == "1") : std::nullopt;
}

template <class Enum>
std::optional<Enum> parse_enum(std::string_view text, std::initializer_list<Enum> values) {
  for (const Enum value : values) {
    if (to_string(value) == text) return value;
  }
  return std::nullopt;
}

template <class Field, class T>
bool assign(Field& field, const std::optional<T>& parsed) {
  if (parsed) field = *parsed;
  return parsed.has_value();
}

template <class T>
bool assign(std::optional<T>& field, const std::optional<T>& parsed) {
  if (parsed) field = parsed;
  return parsed.has_value();
}

struct Variable {
  const char* name;
  const char* meaning;
  const char* allowed;
  const char* default_value;
  bool (*read)(Config& config, const std::string& text);  // false: not an allowed value
};

// The only table of variables: from_environment reads it and config_variables shows it.
constexpr Variable kVariables[] = {
    {"LAZYROPE_CACHE_DIR", "directory of compiled kernels", "a path, or none (memory only)",
     "$XDG_CACHE_HOME/lazyrope, else $HOME/.cache/lazyrope, else none",
     [](Config& config, const std::string& text) {
       config.cache_dir = text == kMemoryOnly ? "" : absolute_path(text);
       return true;
     }},
    {"LAZYROPE_CACHE_MAX_BYTES", "size above which the least recently used kernels are deleted",
     "a number of bytes, or one followed by K, M, G or T (powers of 1024)", "1G",
     [](Config& config, const std::string& text) {
       return assign(config.cache_max_bytes, parse_bytes(text));
     }},
    {kTrustVariable,
     "owners, besides this user and root, whose cache files are used; with it, links are followed",
     "users and groups, such as 1000,builder,group:0: numbers, or names of this machine",
     "no one else",
     [](Config& config, const std::string& text) {
       return assign(config.cache_trust, FileTrust::parse(text));
     }},
    {"LAZYROPE_CACHE_LAYERS",
     "read-only directories of kernels, such as those of an image, which are searched first",
     "paths, with colons between them", "no others",
     [](Config& config, const std::string& text) {
       config.cache_layers = absolute_paths(text);
       return !config.cache_layers.empty();
     }},
    {"LAZYROPE_CACHE_STRICT",
     "whether a kernel that another version of the compiler made is compiled again", "0 or 1", "0",
     [](Config& config, const std::string& text) {
       return assign(config.cache_strict, parse_flag(text));
     }},
    {"LAZYROPE_POLICY", "what to do about a kernel that is not in the cache: compile it or refuse",
     "jit or cache_only", "jit",
     [](Config& config, const std::string& text) {
       return assign(config.policy, parse_enum(text, {CachePolicy::kJit, CachePolicy::kCacheOnly}));
     }},
    {"LAZYROPE_TRUSTED_KEY", "the public keys, one of which must have signed a pack of kernels",
     "a key that lazyrope keygen made, or the path of a file of such keys",
     "any pack is unpacked, also an unsigned one",
     [](Config& config, const std::string& text) {
       config.trusted_key = text;
       return true;
     }},
    {"LAZYROPE_NVRTC", "the NVRTC library to compile with", "path of a libnvrtc.so",
     "searched for: see lazyrope doctor",
     [](Config& config, const std::string& text) {
       config.nvrtc_path = text;
       return true;
     }},
    {"LAZYROPE_CXX", "the C++ compiler with which the emulator (arch emu:...) builds kernels",
     "a command", "c++",
     [](Config& config, const std::string& text) {
       config.host_compiler = text;
       return true;
     }},
    {"LAZYROPE_EMULATOR_SEED", "seed of the order in which the emulator runs a kernel's threads",
     "a number", "0",
     [](Config& config, const std::string& text) {
       return assign(config.emulator_seed, parse_count(text));
     }},
    {"LAZYROPE_EMULATOR_RACES",
     "whether the emulator looks for accesses to memory that no barrier orders; slower", "0 or 1",
     "0",
     [](Config& config, const std::string& text) {
       return assign(config.emulator_races, parse_flag(text));
     }},
    {"LAZYROPE_LOG", "what is logged", "off, warning, info or debug", "warning",
     [](Config& config, const std::string& text) {
       return assign(config.log_level, parse_enum(text, {LogLevel::kOff, LogLevel::kWarning,
                                                         LogLevel::kInfo, LogLevel::kDebug}));
     }},
    {"LAZYROPE_DUMP_DIR",
     "directory to which the source of every kernel is written, compiled or found in the cache",
     "a path", "not written",
     [](Config& config, const std::string& text) {
       config.dump_dir = absolute_path(text);
       return true;
     }},
    {"LAZYROPE_TRACE",
     "file to which calls are added with their shapes and durations, as JSON for Perfetto",
     "a path", "not written",
     [](Config& config, const std::string& text) {
       config.trace_file = absolute_path(text);
       return true;
     }},
};

// Returns why the variable cannot have this value, or an empty text.
std::string fault_of(const Variable& variable, const std::string& text) {
  try {
    Config scratch;
    if (variable.read(scratch, text)) return "";
  } catch (const SpecError& error) {
    return fmt::format("{}='{}': {}", variable.name, text, error.what());
  }
  return fmt::format("{}='{}' is not allowed: give {}, or unset it for the default ({})",
                     variable.name, text, variable.allowed, variable.default_value);
}

// Returns a config with the values of the variables that have no fault.
Config config_of(const EnvironmentLookup& lookup, std::vector<ConfigVariable> variables) {
  Config config;
  config.cache_dir = default_cache_dir(lookup);
  config.environment = std::move(variables);
  for (std::size_t i = 0; i < config.environment.size(); ++i) {
    const ConfigVariable& variable = config.environment[i];
    if (variable.value && variable.fault.empty()) kVariables[i].read(config, *variable.value);
  }
  return config;
}

}  // namespace

std::string_view to_string(CachePolicy policy) {
  return policy == CachePolicy::kJit ? "jit" : "cache_only";
}

std::optional<std::string> process_environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::nullopt : std::optional<std::string>(value);
}

Config Config::from_environment(const EnvironmentLookup& lookup) {
  std::vector<ConfigVariable> variables = config_variables(lookup);
  for (const ConfigVariable& variable : variables)
    if (!variable.fault.empty()) throw SpecError(variable.fault);
  return config_of(lookup, std::move(variables));
}

Config Config::from_environment_or_defaults(const EnvironmentLookup& lookup) {
  return config_of(lookup, config_variables(lookup));
}

std::vector<ConfigVariable> config_variables(const EnvironmentLookup& lookup) {
  std::vector<ConfigVariable> rows;
  for (const Variable& row : kVariables) {
    const std::optional<std::string> value = non_empty(lookup, row.name);
    rows.push_back({row.name, row.meaning, row.allowed, row.default_value, value});
    if (value) rows.back().fault = fault_of(row, *value);
  }
  return rows;
}

std::vector<std::string> unknown_variables() {
  std::vector<std::string> names;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    const std::string_view name = text.substr(0, text.find('='));
    if (name.starts_with("LAZYROPE_") &&
        std::ranges::find(kVariables, name, &Variable::name) == std::end(kVariables))
      names.emplace_back(name);
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace lazyrope
