#pragma once

#include "runtime/attention/attention.h"
#include "runtime/engine/tuning.h"

namespace lazyrope {

// Both run kernels in the emulator, with random inputs.

// Plans a step of that workload, and attends once.
void attend_once(const Attention& attention, const TuningWorkload& workload);

// Plans where all tokens of the workload go, and appends them.
void append_once(const Attention& attention, const TuningWorkload& workload);

}  // namespace lazyrope
