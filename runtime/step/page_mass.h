#pragma once

#include "templates/abi/page_mass.h"

namespace lazyrope {

// A step's room for page masses (templates/abi/page_mass.h), in the step's memory. Only a shape
// with page_mass has it. Without capacity.mass_pages there are no terms, but the planner still
// needs the numbers of the runs.
struct StepPageMass {
  PlanPageMassParams plan;
  PageMassView view;
  float* lse;  // [query tokens, heads]: for calls whose caller takes none

  bool has_room() const { return plan.max_token_runs > 0; }
};

}  // namespace lazyrope
