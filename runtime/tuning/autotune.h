#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "runtime/attention/attention.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/tuning.h"
#include "runtime/tuning/tuning_inputs.h"

namespace lazyrope {

// Options of autotune().
struct AutotuneOptions {
  EngineOptions engine = {};  // its listener receives each config's kernels
  double seconds = 30;        // limit for all measurements together
  unsigned seed = 2606;       // seeds the order in which configs are interleaved
  std::vector<TuningWorkload> workloads = tuning_workloads();
  // Called at the start of each stage, with a line of text.
  std::function<void(std::string_view)> progress = [](std::string_view) {};
};

// Measures configs near the spec's default on the device, one task after the other, and chooses the
// fastest. The device must be idle otherwise. A config whose results differ from the default's is
// rejected with a warning. Throws SpecError, CompileError or DriverError.
Tuning autotune(const Engine& engine, const AttentionSpec& spec,
                const std::shared_ptr<const Device>& device, const AutotuneOptions& options = {});

}  // namespace lazyrope
