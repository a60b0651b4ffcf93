#pragma once

#include "runtime/attention/attention.h"
#include "runtime/engine/tuning.h"

namespace lazyrope {

// Plans a step of the workload and attends once, in the emulator, with random inputs.
void attend_once(const Attention& attention, const TuningWorkload& workload);

// Appends all tokens of the workload, in the emulator, with random inputs.
void append_once(const Attention& attention, const TuningWorkload& workload);

}  // namespace lazyrope
