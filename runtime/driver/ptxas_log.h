#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// The report of ptxas on one function, when NVRTC runs it with --ptxas-options=-v.
struct PtxasFunction {
  std::string name;           // as in the cubin: mangled unless extern "C"
  bool is_kernel = false;     // else a device function that was not inlined
  int stack_bytes = 0;        // per thread, in local memory
  int spill_store_bytes = 0;  // per thread
  int spill_load_bytes = 0;   // per thread
  int registers = 0;          // per thread; 0 for device functions

  bool operator==(const PtxasFunction&) const = default;
};

// Returns the reports in NVRTC's log. Other lines of the log are ignored.
std::vector<PtxasFunction> parse_ptxas_log(std::string_view log);

}  // namespace lazyrope
