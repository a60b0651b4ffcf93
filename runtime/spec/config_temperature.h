#pragma once

#include <optional>

#include "codegen/kernel_spec.h"
#include "runtime/spec/layer_kinds.h"
#include "runtime/spec/model_types.h"

namespace lazyrope {

// Returns the temperature by position of a layer's queries, if they have one. The keys of the
// config are those that keys_read() has chosen.
std::optional<QueryTemperature> temperature_of_config(const Json& config, const ModelType& model,
                                                      LayerKind kind, bool has_rope);

}  // namespace lazyrope
