#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "codegen/parameter.h"

namespace lazyrope {

using MaskParameter = Parameter<int>;
using MaskParameters = Parameters<int>;

// A mask: a row here and a file in templates/ops/mask, which says what logical positions a query
// sees.
struct MaskVariant {
  std::string name;
  std::string meaning;
  std::string file;
  std::vector<MaskParameter> parameters = {};  // template arguments of the file's Mask, in order
};

// The row of that name; SpecError that lists the names there are.
MaskVariant mask_variant(std::string_view name);
std::vector<MaskVariant> mask_variants();

// SpecError that names the parameter that is missing, out of range or unknown.
void validate(std::string_view mask, const MaskParameters& parameters);

// Adds a row at run time; SpecError if the name is taken.
void register_mask_variant(MaskVariant variant);

}  // namespace lazyrope
