#pragma once

#include <CLI/CLI.hpp>

#include "tools/command.h"

namespace lazyrope {

// Adds the subcommand why to `lazyrope cache`.
Command why_command(CLI::App& cache);

}  // namespace lazyrope
