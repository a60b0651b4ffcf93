#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "codegen/arch.h"
#include "runtime/base/config.h"

namespace lazyrope {

void add_json_option(CLI::App& app, bool& json);

// --cache DIR, and the configuration that follows from it and the environment.
void add_cache_option(CLI::App& app, std::string& directory);
Config config_with_cache(const std::string& directory);

// "sm_80, sm_86, ...": what --arch takes.
std::string arch_names();

// The architecture that --arch names. UsageError for an unknown name.
const Arch& named_arch(const std::string& name);

// The same, or for an empty name that of the present GPU. std::runtime_error without a GPU.
const Arch& arch_of(const std::string& name);

}  // namespace lazyrope
