#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/spec/spec.h"

namespace lazyrope {

// The attention of each layer of a model. A layer without attention, such as a recurrent one, has
// no value.
using LayerSpecs = std::vector<std::optional<AttentionSpec>>;

// Returns the attention of each layer of a model, as Hugging Face transformers makes it of the same
// config. `json` is the text of its config.json: of version 5, with rope_parameters, or older, with
// rope_theta and rope_scaling. Of a model of images or audio, the attention is that of its
// text_config. `dtype` replaces the config's. Throws SpecError for an unknown model type or RoPE
// type, and for a key that would change the result. The error names the key; nothing is guessed.
// Keys that transformers ignores for the type are ignored, and logged at level debug.
LayerSpecs attention_specs_from_hf(const std::string& json, const std::optional<std::string>& dtype,
                                   const RopeUse& use = {});

// Returns the attention of one layer, or of any layer with attention if all of these are the same.
// Also throws SpecError if they differ and no layer is given, and for a layer without attention.
AttentionSpec attention_spec_from_hf(const std::string& json,
                                     const std::optional<std::string>& dtype,
                                     std::optional<int> layer = {}, const RopeUse& use = {});

}  // namespace lazyrope
