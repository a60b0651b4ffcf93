#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "codegen/arch.h"
#include "runtime/config.h"

namespace lazyrope {

void add_json_option(CLI::App& app, bool& json);

// --cache DIR, and the configuration that follows from it and the environment.
void add_cache_option(CLI::App& app, std::string& directory);
Config config_with_cache(const std::string& directory);

// "sm_80, sm_86, ...": what --arch takes.
std::string arch_names();

// The architecture of that name, or for an empty one that of the present GPU. SpecError for an
// unknown name, std::runtime_error without a GPU.
const Arch& arch_of(const std::string& name);

}  // namespace lazyrope
