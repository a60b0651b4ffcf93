#pragma once

#include <string>
#include <string_view>

namespace lazyrope {

// Writes the source of a kernel to a file in the directory of LAZYROPE_DUMP_DIR, which is made if
// it is missing. Whatever has that name is replaced, never followed or opened: a link, a FIFO,
// another file. A failure is a logged warning.
void dump_source(const std::string& directory, const std::string& name, std::string_view source);

}  // namespace lazyrope
