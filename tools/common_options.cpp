#include "tools/common_options.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "codegen/error.h"
#include "runtime/base/error.h"
#include "runtime/engine/devices.h"
#include "tools/command.h"
#include "tools/environment.h"

namespace lazyrope {
namespace {

const Arch& current_gpu_arch() {
  try {
    return current_arch();
  } catch (const DriverError& error) {
    throw std::runtime_error(
        fmt::format("no usable GPU was found, so --arch is needed: give one of {}\n{}",
                    arch_names(), error.what()));
  }
}

// Returns the lookup of the process's environment with another LAZYROPE_CACHE_DIR, if one is given.
EnvironmentLookup lookup_with_cache(const std::string& directory) {
  return [directory](const char* name) {
    const bool given = !directory.empty() && std::string_view(name) == "LAZYROPE_CACHE_DIR";
    return given ? directory : process_environment(name);
  };
}

Config with_nvrtc_directories(Config config) {
  config.nvrtc_directories = installed_nvrtc_directories();
  return config;
}

}  // namespace

void add_json_option(CLI::App& app, bool& json) { app.add_flag("--json", json, "Print JSON"); }

void add_threads_option(CLI::App& app, int& threads) {
  constexpr int kMaxThreads = 1024;
  app.add_option("--threads", threads, "Kernels to compile at once (default: one per core)")
      ->option_text("N")
      ->check(CLI::Range(1, kMaxThreads));
}

void add_cache_option(CLI::App& app, std::string& directory) {
  app.add_option("--cache", directory,
                 "Cache directory, or 'none' to cache in memory only (default: LAZYROPE_CACHE_DIR)")
      ->option_text("DIR");
}

Config config_with_cache(const std::string& directory) {
  return with_nvrtc_directories(Config::from_environment(lookup_with_cache(directory)));
}

Config config_for_doctor(const std::string& directory) {
  return with_nvrtc_directories(Config::from_environment_or_defaults(lookup_with_cache(directory)));
}

Config config_with_out(const std::string& directory) {
  if (directory.empty()) throw UsageError("--out is missing: give the directory for the kernels");
  if (directory == "none")
    throw UsageError(
        "--out none: \"none\" stands for no cache; give ./none for a directory of that name");
  return config_with_cache(directory);
}

std::vector<std::string> arch_names_if(const std::function<bool(const Arch&)>& accepts) {
  std::vector<std::string> names;
  for (const Arch& arch : archs())
    if (accepts(arch)) names.push_back(arch.name);
  return names;
}

std::string arch_names() {
  return fmt::format("{}", fmt::join(arch_names_if([](const Arch&) { return true; }), ", "));
}

const Arch& named_arch(const std::string& name) {
  try {
    return find_arch(name);
  } catch (const SpecError& error) {
    throw UsageError(fmt::format("--arch: {}", error.what()));
  }
}

const Arch& arch_of(const std::string& name) {
  return name.empty() ? current_gpu_arch() : named_arch(name);
}

}  // namespace lazyrope
