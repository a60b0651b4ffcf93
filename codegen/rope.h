#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/parameter.h"

namespace lazyrope {

using RopeParameter = Parameter<double>;
using RopeParameters = Parameters<double>;

// Which RoPE: a row of the registry, and the values of that row's parameters.
struct RopeSpec {
  std::string variant = "none";
  int rotary_dim = 0;  // columns that turn, from column 0 on; 0: none
  RopeParameters parameters = {};

  bool operator==(const RopeSpec&) const = default;
};

// A RoPE variant: a row here and, where its pairing is new, a file in templates/ops/rope.
struct RopeVariant {
  std::string name;
  std::string meaning;
  std::string pairing;  // template file that says which columns turn together
  std::vector<RopeParameter> parameters;
  // Radians per token of each pair, rotary_dim / 2 of them.
  std::function<std::vector<double>(int rotary_dim, const RopeParameters&)> frequencies;
  // Multiplies the rotated pairs of queries and of keys once each.
  std::function<double(const RopeParameters&)> attention_factor = [](const RopeParameters& given) {
    const auto it = given.find("attention_factor");
    return it == given.end() ? 1.0 : it->second;
  };
  // What must hold between parameters, each of which is in its own range: throws SpecError.
  std::function<void(const RopeParameters&)> check = [](const RopeParameters&) {};
};

// The row of that name; SpecError that lists the names there are.
RopeVariant rope_variant(std::string_view name);
std::vector<RopeVariant> rope_variants();

// Adds a row at run time; SpecError if the name is taken. Its pairing must be a template file, one
// of the library's or one added by register_template.
void register_rope_variant(RopeVariant variant);

// Checks the parameters and the rotary dimension against the row and `head_dim`; SpecError.
void validate(const RopeSpec& rope, int head_dim);

}  // namespace lazyrope
