#pragma once

#include <vector>

#include "codegen/kernel_config.h"

namespace lazyrope {

// Where tuning looks for a faster config: legal configs near `config`, which is the first of each.
// Its attend kernels do not depend on each other, so each is varied alone, in at most two of its
// members at once. That its tiles have one KV head or two side by side is one of decode's. Few of
// these spill registers, but only compiling tells.
std::vector<KernelConfig> decode_variants(const KernelConfig& config, const KernelSpec& spec,
                                          const Arch& arch);
std::vector<KernelConfig> prefill_variants(const KernelConfig& config, const KernelSpec& spec,
                                           const Arch& arch);

// Those that differ in min_split_blocks, which no kernel depends on.
std::vector<KernelConfig> split_variants(const KernelConfig& config);

}  // namespace lazyrope
