#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// A mask: a row here and a file in templates/ops/mask, which says what logical positions a query
// sees.
struct MaskVariant {
  std::string name;
  std::string meaning;
  std::string file;
};

// The row of that name; SpecError that lists the names there are.
MaskVariant mask_variant(std::string_view name);
std::vector<MaskVariant> mask_variants();

// Adds a row at run time; SpecError if the name is taken.
void register_mask_variant(MaskVariant variant);

}  // namespace lazyrope
