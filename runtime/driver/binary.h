#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace lazyrope {

// A compiled kernel and all that launching it takes: what a cache entry holds.
struct Binary {
  std::string entry;
  std::string arch;
  int threads = 0;
  int shared_bytes = 0;  // dynamic
  int registers = 0;     // of a thread
  int spill_bytes = 0;   // stores and loads of spilled registers, and stack frame
  std::string compiler;  // identity of the compiler that made it
  double compile_ms = 0;
  std::vector<std::byte> code;  // a cubin; for the emulator a shared library
};

}  // namespace lazyrope
