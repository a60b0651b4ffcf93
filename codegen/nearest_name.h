#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// Returns the name that `given` is most likely a misspelling of, or an empty text. A name is near
// if at most a third of the characters of `given` (but at least one) must be inserted, removed,
// replaced or swapped with their neighbour. Letters of either case are equal, and a name with
// other digits is never near. Of two equally near names, one that begins with `given` wins, and
// then the first.
std::string nearest_name(std::string_view given, const std::vector<std::string>& names);

// Returns " (did you mean NAME?)" with the nearest name, or an empty text. It stands in an error
// message, after what was given.
std::string did_you_mean(std::string_view given, const std::vector<std::string>& names);

}  // namespace lazyrope
