#pragma once

#include "codegen/rope.h"
#include "runtime/spec/model_types.h"

namespace lazyrope {

// Returns the RoPE of a config whose keys keys_read() has chosen: rope_parameters of version 5 of
// transformers, or the older rope_scaling and rope_theta.
RopeSpec rope_of_config(const Json& config, const ModelType& model, int head_dim);

}  // namespace lazyrope
