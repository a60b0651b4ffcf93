#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "runtime/engine/engine.h"
#include "runtime/engine/kernel_set.h"
#include "tools/spec_options.h"

namespace lazyrope {

// The kernels that a command line asks for: of which models, for which archs.
struct KernelOptions {
  SpecOptions spec;
  std::vector<std::string> archs;
  bool reposition = false;
  bool allow_spills = false;
  int threads = 0;
};

void add_kernel_options(CLI::App& app, KernelOptions& options);

// Model after model, and for each arch after arch: the kernels of an attention and, where it is
// asked for, reposition. Throws as specs_of and arch_of do.
std::vector<KernelSetRequest> kernel_sets_of(const KernelOptions& options);

// How they are to be compiled.
EngineOptions engine_options_of(const KernelOptions& options, KernelListener* listener = nullptr);

}  // namespace lazyrope
