#pragma once

#include <stdexcept>

namespace lazyrope {

// Thrown when an entry cannot be trusted, a directory cannot be read or written, or a key cannot be
// built.
class CacheError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace lazyrope
