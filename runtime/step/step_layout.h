#pragma once

#include <cstddef>

#include "codegen/kernel_config.h"
#include "runtime/step/step.h"
#include "templates/abi/plan.h"

namespace lazyrope {

// Places the parts of a step in one block of device memory that begins at `memory`, and fills in
// the planner's parameters. Returns the size of the block, so that a first call with null measures
// it.
std::size_t lay_out_step(std::byte* memory, const StepShape& shape, const KernelConfig& config,
                         const StepCapacity& capacity, int sm_count, PlanParams& params);

}  // namespace lazyrope
