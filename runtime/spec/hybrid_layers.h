#pragma once

#include "runtime/spec/config_json.h"

// The layers of hybrid models that have attention, unless layer_types says so. Each function
// returns whether a layer has attention. It throws SpecError if a key that says so is unusable.

namespace lazyrope::hybrid_layers {

// Layers 3, 7, 11, ...; full_attention_interval may replace the 4.
bool every_fourth(const Json& config, int layer);

// Layers 0, 2, 4, ...
bool even(const Json& config, int layer);

// No layer.
bool none(const Json& config, int layer);

// The layers of full_attn_idxs, or all if it is absent.
bool of_full_attn_idxs(const Json& config, int layer);

// The layers of attn_layer_indices, or none if it is absent.
bool of_attn_layer_indices(const Json& config, int layer);

// The layers whose remainder by attn_layer_period is attn_layer_offset.
bool of_period(const Json& config, int layer);

// Throws SpecError: the type has no rule, so layer_types must be given.
bool listed(const Json& config, int layer);

// Replaces the letters of hybrid_override_pattern by layer_types, and sets num_hidden_layers. In
// transformers the number of layer_types of Nemotron-H is the number of layers.
void read_pattern_of_nemotron_h(Json& config);

}  // namespace lazyrope::hybrid_layers
