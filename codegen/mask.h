#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/parameter.h"

namespace lazyrope {

using MaskParameter = Parameter<int>;
using MaskParameters = Parameters<int>;

// A mask variant: a row of the registry and a file in templates/ops/mask, which says which logical
// positions a query sees.
struct MaskVariant {
  std::string name;
  std::string meaning;
  std::string file;
  std::vector<MaskParameter> parameters = {};  // template arguments of the file's Mask, in order
};

// Returns the row with this name. Throws SpecError, which lists the known names, if there is none.
// The functions of this header are safe to call from several threads.
MaskVariant mask_variant(std::string_view name);
std::vector<MaskVariant> mask_variants();

// Throws SpecError, which names the parameter that is missing, out of range or unknown.
void validate(std::string_view mask, const MaskParameters& parameters);

// Adds a row at run time. Throws SpecError if the name is taken.
void register_mask_variant(const MaskVariant& variant);

}  // namespace lazyrope
