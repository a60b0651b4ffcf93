#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lazyrope {

// A compiled kernel and the facts that its launch needs: the content of a cache entry. Plain data
// without locks.
struct Binary {
  std::string entry;
  std::string arch;
  int threads = 0;
  int shared_bytes = 0;  // dynamic shared memory
  int registers = 0;     // per thread
  int spill_bytes = 0;   // stores and loads of spilled registers, and stack frame
  std::string compiler;  // identity of the compiler
  double compile_ms = 0;
  std::vector<std::byte> code;  // a cubin; for the emulator a shared library
};

}  // namespace lazyrope
