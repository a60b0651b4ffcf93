#include "runtime/base/version.h"

namespace lazyrope {

std::string_view version() { return LAZYROPE_VERSION; }

}  // namespace lazyrope
