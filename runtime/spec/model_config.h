#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/spec/spec.h"

namespace lazyrope {

// The model types that are known, as config.json names them.
std::vector<std::string> model_types_of_hf();

// The attention of each layer of a model, from the text of its config.json as Hugging Face
// transformers writes it (version 5's rope_parameters as well as the older rope_theta and
// rope_scaling). `dtype` replaces the config's. SpecError that names the key for a model type, RoPE
// type or key that would change the result and is not known: never a guess.
std::vector<AttentionSpec> attention_specs_from_hf(const std::string& json,
                                                   const std::optional<std::string>& dtype);

// That of one layer; of any where all are the same. SpecError also where they are not and no layer
// is given.
AttentionSpec attention_spec_from_hf(const std::string& json,
                                     const std::optional<std::string>& dtype,
                                     std::optional<int> layer = {});

}  // namespace lazyrope
