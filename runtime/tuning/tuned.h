#pragma once

#include <memory>
#include <string_view>

#include "runtime/attention/attention.h"
#include "runtime/tuning/autotune.h"
#include "runtime/tuning/tune.h"

namespace lazyrope {

// Under which key the tuning of a spec on a device is kept: the GPU, and the default kernels'
// sources, so that another library or spec has another. Driver and compiler are in the record.
Key tuning_key(const AttentionSpec& spec, const Device& device);

// The GPU that tuning measures on: the present one, whose arch `arch` must be if it is given.
// DriverError without a GPU, SpecError for another arch.
std::shared_ptr<const Device> gpu_to_tune_on(std::string_view arch);

// The attention as it was tuned for the device; null where there is no record, or none that holds:
// another driver or compiler makes other times, and kernels that are missing may not be compiled.
// That is logged.
std::shared_ptr<const Attention> stored_attention(Engine& engine, const AttentionSpec& spec,
                                                  const Device& device,
                                                  const EngineOptions& options);

// Tunes, and keeps the record. CacheError where nothing may be compiled, and as autotune().
std::shared_ptr<const Attention> tuned_attention(Engine& engine, const AttentionSpec& spec,
                                                 const std::shared_ptr<const Device>& device,
                                                 const AutotuneOptions& options);

// Attention::compile() for `arch`, or for the present GPU where that is empty, by the config that
// `options` or `tune` say.
std::shared_ptr<const Attention> compile_for(Engine& engine, const AttentionSpec& spec,
                                             std::string_view arch, Tune tune,
                                             const CompileOptions& options);

}  // namespace lazyrope
