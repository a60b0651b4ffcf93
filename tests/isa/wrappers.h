#pragma once

#include <set>
#include <string>
#include <string_view>

namespace lazyrope {

// Names of the functions that a text of templates/isa/ptx defines for kernels.
std::set<std::string> wrappers_in(std::string_view text);

// Of all texts there.
std::set<std::string> all_wrappers();

// Whether the text has the name as a word, or the first sign of an operator, outside of comments.
bool names_wrapper(std::string_view text, std::string_view wrapper);

}  // namespace lazyrope
