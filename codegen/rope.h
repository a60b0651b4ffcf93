#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "codegen/parameter.h"

namespace lazyrope {

using RopeParameter = Parameter<double>;
using RopeParameters = Parameters<double>;
// Lists of numbers by name. A list has a number for each rotated pair.
using RopeLists = std::map<std::string, std::vector<double>, std::less<>>;

// The RoPE of a spec: the name of a registry row and the values of its parameters.
struct RopeSpec {
  std::string variant = "none";
  int rotary_dim = 0;  // columns that are rotated, from column 0 on; 0: none
  RopeParameters parameters = {};
  RopeLists lists = {};

  bool operator==(const RopeSpec&) const = default;
};

// A parameter of a variant with a number for each rotated pair. A list is always required.
struct RopeList {
  std::string name;
  std::string meaning;
  double min;
  double max;
};

// A RoPE variant: a row of the registry and, if its pairing is new, a file in templates/ops/rope.
struct RopeVariant {
  std::string name;
  std::string meaning;
  std::string pairing;  // the template file that says which columns are rotated together
  std::vector<RopeParameter> parameters;
  // Returns the radians per token of each pair, rotary_dim / 2 of them. The spec is valid.
  std::function<std::vector<double>(const RopeSpec&)> frequencies;
  // Returns the factor that multiplies the rotated pairs of queries and of keys once each.
  std::function<double(const RopeParameters&)> attention_factor = [](const RopeParameters& given) {
    const auto it = given.find("attention_factor");
    return it == given.end() ? 1.0 : it->second;
  };
  // Throws SpecError if parameters that are each in range do not fit together.
  std::function<void(const RopeParameters&)> check = [](const RopeParameters&) {};
  std::vector<RopeList> lists = {};
};

// Returns the row with this name. Throws SpecError, which lists the known names, if there is none.
// The functions of this header are safe to call from several threads.
RopeVariant rope_variant(std::string_view name);
std::vector<RopeVariant> rope_variants();

// Adds a row at run time. Throws SpecError if the name is taken. The pairing must be one of the
// library's template files, or one that register_template added.
void register_rope_variant(const RopeVariant& variant);

// Checks the parameters and the rotary dimension against the row and `head_dim`. Throws SpecError.
void validate(const RopeSpec& rope, int head_dim);

}  // namespace lazyrope
