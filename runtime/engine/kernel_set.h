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

// Kernels that are used together, on one arch.
struct KernelSetRequest {
  KernelSpec spec;
  const Arch* arch;
  std::vector<KernelKind> kinds;
  std::vector<KernelConfig> configs;  // best first; the first with which no kernel spills is taken
  std::string name;                   // of what it is for; the spec in words unless it has another
};

// Those of an attention, with this config or else the first candidate that does not spill.
// SpecError.
KernelSetRequest attention_set(const AttentionSpec& spec, const Arch& arch,
                               const std::optional<KernelConfig>& config = {});
// That of reposition. SpecError.
KernelSetRequest reposition_set(const AttentionSpec& spec, const Arch& arch);

// What came of a request.
struct KernelSet {
  KernelConfig config;                // the one taken, or the last one tried
  std::vector<KernelResult> results;  // by the request's kinds

  // All of them; throws the first failure.
  std::vector<std::shared_ptr<const Kernel>> kernels() const;
};

// All kernels of all sets in one queue, the longest to compile first. Which config a set gets
// follows from what the cache or the compiler says of its kernels, so a process that only reads the
// cache takes the config that the one which filled it took. SpecError.
std::vector<KernelSet> compile_sets(Engine& engine, const std::vector<KernelSetRequest>& requests,
                                    const EngineOptions& options);

}  // namespace lazyrope
