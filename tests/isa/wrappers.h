#pragma once

#include <set>
#include <string>
#include <string_view>

namespace lazyrope {

// Returns the names of the functions that a text of templates/isa/ptx defines for kernels.
std::set<std::string> wrappers_in(std::string_view text);

// Returns the names that all texts of templates/isa/ptx define.
std::set<std::string> all_wrappers();

// Returns true if the text has the name as a word outside of comments. For an operator it looks for
// its first character alone.
bool names_wrapper(std::string_view text, std::string_view wrapper);

}  // namespace lazyrope
