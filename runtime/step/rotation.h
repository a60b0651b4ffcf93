#pragma once

#include "templates/abi/rotation.h"

namespace lazyrope {

// The parameters of the kernels of a step with scratch for rotated keys. All are zero in a step
// without one.
struct StepRotation {
  PlanRotationParams runs;
  RotateKeysParams keys;  // without the caller's pool
  PlanParams plan;        // the plan of attention over the scratch, in phase 0
};

}  // namespace lazyrope
