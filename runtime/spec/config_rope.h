#pragma once

#include "codegen/rope.h"
#include "runtime/spec/layer_kinds.h"
#include "runtime/spec/model_types.h"
#include "runtime/spec/spec.h"

namespace lazyrope {

// Returns the RoPE of the layers of a kind, which rotate, of a config whose keys keys_read() has
// chosen: rope_parameters of version 5 of transformers, or the older rope_scaling and rope_theta.
RopeSpec rope_of_config(const Json& config, const ModelType& model, LayerKind kind, int head_dim,
                        const RopeUse& use);

// Returns the object with the parameters of the RoPE of the layers of a kind: with rope_type, with
// rope_theta, and without keys whose value is null.
Json rope_parameters_of(const Json& config, const ModelType& model, LayerKind kind);

}  // namespace lazyrope
