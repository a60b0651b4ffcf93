#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "tools/command.h"

namespace lazyrope {

// The options of `lazyrope cache prune` about age and entries to keep.
struct KeepOptions {
  std::string older_than;
  std::vector<std::string> keep;  // files of packs or manifests
};

void add_keep_options(CLI::App& app, KeepOptions& options);

// Returns the limits of prune() for these options. Throws UsageError, and CacheError for a file
// that names no entries.
PruneLimits prune_limits(const KeepOptions& options, std::uint64_t max_bytes);

// Adds the subcommands pin, unpin and pins to `lazyrope cache`.
std::vector<Command> pin_commands(CLI::App& cache);

}  // namespace lazyrope
