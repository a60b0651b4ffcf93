#pragma once

#include <stdexcept>

namespace lazyrope {

// Thrown when something is wrong with the cache: an entry that cannot be trusted, a directory that
// cannot be read or written, or a key that cannot be built.
class CacheError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace lazyrope
