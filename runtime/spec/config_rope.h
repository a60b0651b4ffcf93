#pragma once

#include <optional>

#include "codegen/rope.h"
#include "runtime/spec/layer_kinds.h"
#include "runtime/spec/model_types.h"

namespace lazyrope {

// Returns the RoPE of the layers of a kind, which rotate, of a config whose keys keys_read() has
// chosen: rope_parameters of version 5 of transformers, or the older rope_scaling and rope_theta.
// `max_model_len` is the most tokens of a request. Without a value it is max_position_embeddings.
RopeSpec rope_of_config(const Json& config, const ModelType& model, LayerKind kind, int head_dim,
                        std::optional<int> max_model_len);

// Returns the object with the parameters of the RoPE of the layers of a kind: with rope_type, with
// rope_theta, and without keys whose value is null.
Json rope_parameters_of(const Json& config, const ModelType& model, LayerKind kind);

}  // namespace lazyrope
