#pragma once

#include <functional>
#include <memory>
#include <string_view>

#include "runtime/attention/attention.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/tuning.h"
#include "runtime/tuning/tuning_inputs.h"

namespace lazyrope {

struct AutotuneOptions {
  EngineOptions engine = {};  // its listener hears of each config's kernels
  double seconds = 30;        // that measuring may take
  unsigned seed = 2606;       // of the order in which configs are interleaved
  std::vector<TuningWorkload> workloads = tuning_workloads();
  // Hears of each stage that is begun.
  std::function<void(std::string_view)> progress = [](std::string_view) {};
};

// Measures configs near the spec's default on the device, one task at a time, and chooses. The
// device must have nothing else to do meanwhile. A config whose results differ from the default's
// is left out, with a warning. SpecError, CompileError, DriverError.
Tuning autotune(const Engine& engine, const AttentionSpec& spec,
                const std::shared_ptr<const Device>& device, const AutotuneOptions& options = {});

}  // namespace lazyrope
