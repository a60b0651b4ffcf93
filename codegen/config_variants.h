#pragma once

#include <vector>

#include "codegen/kernel_config.h"

namespace lazyrope {

// These functions return the configs that autotuning measures: `config` first, and then legal
// configs near it. They compile nothing and are safe to call from any thread.
//
// The decode kernel and the prefill kernel do not depend on each other. So the variants of each
// differ from `config` in at most two members of its tile. The number of KV heads that share the
// rows of a decode tile counts as one of them. A few variants spill registers, which only compiling
// them can tell.
std::vector<KernelConfig> decode_variants(const KernelConfig& config, const KernelSpec& spec,
                                          const Arch& arch);
std::vector<KernelConfig> prefill_variants(const KernelConfig& config, const KernelSpec& spec,
                                           const Arch& arch);

// Returns `config` and its variants with another min_split_blocks. This member changes no kernel.
std::vector<KernelConfig> split_variants(const KernelConfig& config);

}  // namespace lazyrope
