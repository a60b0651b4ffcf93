#pragma once

#include <vector>

#include "codegen/tile_plan.h"

namespace lazyrope {

// Where tuning looks for a faster plan: legal plans near `plan`, which is the first of each. Its
// attend kernels do not depend on each other, so each is varied alone, in at most two of its
// members at once. That its tiles have one KV head or two side by side is one of decode's. Few of
// these spill registers, but only compiling tells.
std::vector<TilePlan> decode_variants(const TilePlan& plan, const KernelSpec& spec,
                                      const Arch& arch);
std::vector<TilePlan> prefill_variants(const TilePlan& plan, const KernelSpec& spec,
                                       const Arch& arch);

// Those that differ in min_split_blocks, which no kernel depends on.
std::vector<TilePlan> split_variants(const TilePlan& plan);

}  // namespace lazyrope
