#pragma once

#include <optional>
#include <string>
#include <vector>

#include "runtime/spec/model_config.h"

namespace lazyrope {

// The layers of a model that have the same attention.
struct LayerGroup {
  AttentionSpec spec;
  std::vector<int> layers;  // at least one, ascending, from 0

  bool operator==(const LayerGroup&) const = default;
};

// Throws SpecError if the spec is illegal, or if the layers are not as above.
void validate(const LayerGroup& group);

// Returns the attention of a whole model: groups of layers with equal specs, in the order of their
// first layers. Every layer with attention is in one group. A config that does not state the number
// of layers has layer 0 alone. The arguments and errors are those of attention_specs_from_hf().
std::vector<LayerGroup> attention_groups_from_hf(const std::string& json,
                                                 const std::optional<std::string>& dtype,
                                                 const RopeUse& use = {});

}  // namespace lazyrope
