#pragma once

#include <memory>
#include <string_view>

#include "runtime/attention/attention.h"
#include "runtime/tuning/autotune.h"
#include "runtime/tuning/tune.h"

namespace lazyrope {

// Returns the cache key of a spec's tuning record on a device. The key covers the GPU and the
// sources of the default kernels, so another version of lazyrope or another spec has another key.
// The driver and the compiler are not in the key but in the record.
Key tuning_key(const AttentionSpec& spec, const Device& device);
Key tuning_key(const AttentionSpec& spec, const Arch& arch, std::string_view gpu,
               std::string_view sm_count);

// Returns the present GPU, which tuning measures on. Throws DriverError without a GPU, and
// SpecError if `arch` is given and is not the GPU's.
std::shared_ptr<const Device> gpu_to_tune_on(std::string_view arch);

// Returns the attention with the config of the device's tuning record, or null without a record. A
// record that cannot be used is logged as a warning, and null is returned: if the driver or the
// compiler differs, because times would differ, or if a missing kernel may not be compiled.
std::shared_ptr<const Attention> stored_attention(Engine& engine, const AttentionSpec& spec,
                                                  const Device& device,
                                                  const EngineOptions& options);

// Tunes, and stores the record. Throws CacheError if compiling is forbidden, and what autotune()
// throws.
std::shared_ptr<const Attention> tuned_attention(Engine& engine, const AttentionSpec& spec,
                                                 const std::shared_ptr<const Device>& device,
                                                 const AutotuneOptions& options);

// Compiles an attention for `arch`, or for the present GPU if it is empty, with the config that
// `options` or `tune` choose.
std::shared_ptr<const Attention> compile_for(Engine& engine, const AttentionSpec& spec,
                                             std::string_view arch, Tune tune,
                                             const CompileOptions& options);

}  // namespace lazyrope
