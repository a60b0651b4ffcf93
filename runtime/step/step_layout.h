#pragma once

#include <cstddef>

#include "codegen/kernel_config.h"
#include "runtime/step/step.h"
#include "templates/abi/plan.h"

namespace lazyrope {

// Lays out the arrays of a step in one block of device memory at `memory`, and sets the planner's
// parameters. Returns the size of the block in bytes; a call with a null `memory` only measures it.
std::size_t lay_out_step(std::byte* memory, const StepShape& shape, const KernelConfig& config,
                         const StepCapacity& capacity, int sm_count, PlanParams& params);

// Lays out the scratch for rotated keys, and the plan of attention over it, in the block at
// `memory`. `params` are those of the same step, whose prefill kernel attends where the scratch
// does not suffice. Returns the size of the block in bytes, or 0 for a step without scratch. A call
// with a null `memory` only measures it.
std::size_t lay_out_rotation(std::byte* memory, const StepShape& shape,
                             const StepCapacity& capacity, int sm_count, const PlanParams& params,
                             StepRotation& rotation);

// Lays out the arrays for page masses in the same way. Returns 0 for a shape without them.
std::size_t lay_out_page_mass(std::byte* memory, const StepShape& shape,
                              const StepCapacity& capacity, StepPageMass& page_mass);

// Lays out the arrays of a step's cascade in the same way, and sets all parameters but the caller's
// arrays and the page size. Returns 0 if the step can share nothing.
std::size_t lay_out_cascade(std::byte* memory, const StepShape& shape, const KernelConfig& config,
                            const StepCapacity& capacity, int sm_count, CascadeParams& params);

}  // namespace lazyrope
