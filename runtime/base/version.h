#pragma once

#include <string_view>

namespace lazyrope {

std::string_view version();

}  // namespace lazyrope
