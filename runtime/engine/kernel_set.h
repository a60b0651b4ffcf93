#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "codegen/kernel_config.h"
#include "codegen/render.h"
#include "runtime/engine/engine.h"
#include "runtime/spec/spec.h"

namespace lazyrope {

// A request for kernels that are used together, on one arch.
struct KernelSetRequest {
  KernelSpec spec;
  const Arch* arch;
  std::vector<KernelKind> kinds;
  std::vector<KernelConfig> configs;  // best first; the first one without spills is used
  std::string name;                   // the purpose, for listeners to show
};

// Returns the request for an attention's kernels: with `config`, or else with all of configs().
// Throws SpecError.
KernelSetRequest attention_set(const AttentionSpec& spec, const Arch& arch,
                               const std::optional<KernelConfig>& config = {});
// Returns the request for the kernel of reposition. Throws SpecError.
KernelSetRequest reposition_set(const AttentionSpec& spec, const Arch& arch);

// The outcome of a request.
struct KernelSet {
  KernelConfig config;                // the config in use, or the last one tried
  std::vector<KernelResult> results;  // by the request's kinds

  // Returns all kernels, or throws the first failure.
  std::vector<std::shared_ptr<const Kernel>> kernels() const;
};

// Compiles all kernels of all sets in one queue, the longest to compile first. Throws SpecError. A
// set's config follows from the spills that the cache or the compiler reports. So a process that
// only reads the cache gets the same config as the process that filled it.
std::vector<KernelSet> compile_sets(Engine& engine, const std::vector<KernelSetRequest>& requests,
                                    const EngineOptions& options);

}  // namespace lazyrope
