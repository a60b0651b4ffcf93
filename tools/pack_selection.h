#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "tools/kernel_options.h"

namespace lazyrope {

// The options that select entries of a cache: archs, and models or attentions.
struct SelectionOptions {
  KernelOptions kernels;
  std::vector<CLI::Option*> of_models;  // the options that describe attentions
};

void add_pack_options(CLI::App& app, SelectionOptions& options);

// The entries to pack.
struct Selection {
  std::vector<Key> keys;
  std::size_t bad = 0;  // entries of the cache that cannot be used
};

// Returns the entries of the engine's cache that the options select. Throws UsageError, and
// std::runtime_error if a kernel of a model is missing or if there is no entry.
Selection select_entries(Engine& engine, const SelectionOptions& options);

}  // namespace lazyrope
