#pragma once

#include <stdexcept>

namespace lazyrope {

// Thrown for an illegal specification, config or name. The message says what was given, what is
// allowed and what to do.
class SpecError : public std::invalid_argument {
 public:
  using std::invalid_argument::invalid_argument;
};

}  // namespace lazyrope
