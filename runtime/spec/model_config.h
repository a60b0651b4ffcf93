#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/spec/spec.h"

namespace lazyrope {

// Returns the known model types, with their names in config.json.
std::vector<std::string> model_types_of_hf();

// Returns the attention of each layer of a model, as Hugging Face transformers makes it of the same
// config. `json` is the text of its config.json: of version 5, with rope_parameters, or older, with
// rope_theta and rope_scaling. `dtype` replaces the config's. Throws SpecError for an unknown model
// type or RoPE type, and for a key that would change the result. The error names the key; nothing
// is guessed. Keys that transformers ignores for the type are ignored, and logged at level debug.
std::vector<AttentionSpec> attention_specs_from_hf(const std::string& json,
                                                   const std::optional<std::string>& dtype);

// Returns the attention of one layer, or of any layer if all are the same. Also throws SpecError if
// they differ and no layer is given.
AttentionSpec attention_spec_from_hf(const std::string& json,
                                     const std::optional<std::string>& dtype,
                                     std::optional<int> layer = {});

}  // namespace lazyrope
