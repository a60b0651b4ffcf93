#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "codegen/arch.h"
#include "runtime/base/config.h"

namespace lazyrope {

void add_json_option(CLI::App& app, bool& json);

// Adds --threads N, the number of kernels that are compiled at once.
void add_threads_option(CLI::App& app, int& threads);

// Adds --cache DIR.
void add_cache_option(CLI::App& app, std::string& directory);

// Returns the configuration from environment variables, with the NVRTC directories of the command's
// Python environment. A `directory` that is not empty replaces the value of LAZYROPE_CACHE_DIR.
Config config_with_cache(const std::string& directory);

// Returns the same with the default in place of each variable's bad value.
Config config_for_doctor(const std::string& directory);

// Returns the same with the directory of --out, which may not be empty. Throws UsageError.
Config config_with_out(const std::string& directory);

// Returns the names that --arch takes: "sm_80, sm_86, ...".
std::string arch_names();

// Returns the names of the archs that the predicate accepts, for shells to offer.
std::vector<std::string> arch_names_if(const std::function<bool(const Arch&)>& accepts);

// Returns the arch that --arch names. Throws UsageError for an unknown name.
const Arch& named_arch(const std::string& name);

// Returns the arch of this name, or the present GPU's arch for an empty name. Throws UsageError for
// an unknown name, and std::runtime_error if the name is empty and there is no usable GPU.
const Arch& arch_of(const std::string& name);

}  // namespace lazyrope
