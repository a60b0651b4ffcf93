#pragma once

#include <string_view>

namespace lazyrope {

// Returns why a model type of transformers has no row, or an empty text if the reason is not known.
std::string_view refusal_of_type(std::string_view model_type);

}  // namespace lazyrope
