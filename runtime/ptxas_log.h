#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// What ptxas reports of one function when NVRTC runs it with --ptxas-options=-v.
struct PtxasFunction {
  std::string name;           // as in the cubin: mangled unless extern "C"
  bool is_kernel = false;     // else a device function that was not inlined
  int stack_bytes = 0;        // per thread, in local memory
  int spill_store_bytes = 0;  // per thread
  int spill_load_bytes = 0;   // per thread
  // Of kernels only:
  int registers = 0;            // per thread
  int barriers = 0;             // named barriers; NVRTC before 12.5 may report none
  int static_shared_bytes = 0;  // per block
  int constant_bytes = 0;       // all banks; ptxas reports none from sm_90 on

  bool spills() const noexcept { return spill_store_bytes > 0 || spill_load_bytes > 0; }
  bool operator==(const PtxasFunction&) const = default;
};

// NVRTC's log, understood.
struct PtxasLog {
  std::vector<PtxasFunction> functions;
  // ptxas's warnings and numbered remarks, such as "(C7510) Potential Performance Loss: ...".
  std::vector<std::string> remarks;

  // The function of that name, or null.
  const PtxasFunction* find(std::string_view name) const noexcept;
};

// Reads what it knows and ignores the rest, so a log without ptxas's report gives no functions.
PtxasLog parse_ptxas_log(std::string_view log);

}  // namespace lazyrope
