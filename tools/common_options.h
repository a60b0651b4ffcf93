#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "codegen/arch.h"
#include "runtime/base/config.h"

namespace lazyrope {

void add_json_option(CLI::App& app, bool& json);

// Adds --cache DIR. config_with_cache() returns the environment's configuration with that
// directory, if it is not empty.
void add_cache_option(CLI::App& app, std::string& directory);
Config config_with_cache(const std::string& directory);

// Returns the names that --arch takes: "sm_80, sm_86, ...".
std::string arch_names();

// Returns the arch that --arch names. Throws UsageError for an unknown name.
const Arch& named_arch(const std::string& name);

// Returns the same, or the arch of the present GPU for an empty name. Throws std::runtime_error if
// that is needed and there is no GPU.
const Arch& arch_of(const std::string& name);

}  // namespace lazyrope
