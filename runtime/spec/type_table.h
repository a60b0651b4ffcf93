#pragma once

#include <string>
#include <vector>

namespace lazyrope {

// A description says in words what attention_specs_from_hf() reads for a model type.
struct TypeDescription {
  std::string name;
  std::string heads;    // the number of KV heads, and head_dim
  std::string windows;  // the layers with a sliding window
  std::string rope;     // the values of rope_type
  std::string notes;    // the other properties of the type, or nothing
};

// Returns a description of each known model type.
std::vector<TypeDescription> model_type_table();

}  // namespace lazyrope
