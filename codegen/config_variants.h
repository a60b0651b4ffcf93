#pragma once

#include <vector>

#include "codegen/kernel_config.h"

namespace lazyrope {

// These functions return the configs that autotuning measures: legal configs near `config`, with
// `config` itself first. None of them compiles anything, and all are safe to call from any thread.
//
// The decode kernel and the prefill kernel do not depend on each other, so each is varied alone, in
// at most two of its members at once. The number of KV heads side by side (one or two) is one such
// member of the decode kernel. A few of these configs spill registers, which only compiling can
// tell.
std::vector<KernelConfig> decode_variants(const KernelConfig& config, const KernelSpec& spec,
                                          const Arch& arch);
std::vector<KernelConfig> prefill_variants(const KernelConfig& config, const KernelSpec& spec,
                                           const Arch& arch);

// Returns `config` and its variants with another min_split_blocks. No kernel's source depends on
// that member.
std::vector<KernelConfig> split_variants(const KernelConfig& config);

}  // namespace lazyrope
