#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/engine/kernel_set.h"
#include "tools/spec_options.h"

namespace lazyrope {

// The value of --arch that stands for every arch.
inline constexpr const char* kAllArchs = "all";

// The options that select kernels: models and archs, and how to compile them.
struct KernelOptions {
  SpecOptions spec;
  std::vector<std::string> archs;
  bool reposition = false;
  bool allow_spills = false;
  int threads = 0;
};

// Returns the values that shells offer for an option --arch that takes a list.
std::vector<std::string> offered_archs();

// Adds the options that select kernels, and those that say how to compile them too.
void add_selection_options(CLI::App& app, KernelOptions& options);
void add_kernel_options(CLI::App& app, KernelOptions& options);

// Returns one request per model and arch for the kernels of the attention. With `reposition`, a
// request for that kernel follows each. Throws the exceptions of specs_of() and arch_of().
std::vector<KernelSetRequest> kernel_sets_of(const KernelOptions& options);

// Returns the options for compile_sets().
EngineOptions engine_options_of(const KernelOptions& options, KernelListener* listener = nullptr);

}  // namespace lazyrope
