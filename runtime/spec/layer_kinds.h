#pragma once

#include <optional>
#include <vector>

#include "runtime/spec/model_types.h"

namespace lazyrope {

enum class LayerKind {
  kFull,        // causal attention
  kSliding,     // causal attention with the config's window
  kChunked,     // causal attention within chunks of attention_chunk_size positions
  kNoAttention  // a recurrent layer, or another layer without a KV cache
};

// Returns the kind of each layer of a config whose keys keys_read() has chosen. Throws SpecError if
// layer_types names an unknown kind, or contradicts the model type.
std::vector<LayerKind> layer_kinds(const Json& config, const ModelType& type);

// Returns the config's sliding window in tokens, if it has one.
std::optional<int> window_of(const Json& config, const ModelType& type);

// Returns whether a layer of this kind rotates its queries and keys.
bool has_rope(const Json& config, const ModelType& type, int layer, LayerKind kind);

}  // namespace lazyrope
