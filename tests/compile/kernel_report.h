#pragma once

#include <algorithm>
#include <cstddef>
#include <regex>
#include <string>
#include <vector>

#include "codegen/arch.h"
#include "codegen/render.h"
#include "runtime/driver/compiler.h"
#include "runtime/driver/nvrtc.h"
#include "runtime/driver/ptxas_log.h"
#include "runtime/engine/shared_code.h"
#include "tests/compile/sass_digest.h"
#include "tests/support/engines.h"

namespace lazyrope {

inline const std::vector<Arch>& gpu_archs() {
  static const std::vector<Arch> gpus = [] {
    std::vector<Arch> result = archs();
    std::erase_if(result, [](const Arch& arch) { return arch.isa != "ptx"; });
    return result;
  }();
  return gpus;
}

// The result of compiling one kernel.
struct KernelReport {
  int registers = 0;
  int spill_bytes = 0;  // bytes per thread: spill stores, spill loads and stack
  std::size_t cubin_bytes = 0;
  std::string sass = {};     // sass_digest() of the cubin
  std::string problem = {};  // empty if there is none

  // Returns true if the kernels differ in their instructions alone.
  bool differs_in_sass_only(const KernelReport& other) const {
    KernelReport same = other;
    same.sass = sass;
    return *this == same;
  }
  bool operator==(const KernelReport&) const = default;
};

// Returns true if `log` has a warning of the compiler or of ptxas, or a numbered remark of ptxas
// such as "ptxas info    : (C7510) Potential Performance Loss: ...".
inline bool has_warnings(const std::string& log) {
  static const std::regex pattern(R"(warning|ptxas [^:.]*[:.] *\(C[0-9])");
  return std::regex_search(log, pattern);
}

// Reads the report of a kernel from ptxas's log. The size of the cubin is not in the log.
inline KernelReport read_report(const std::string& kernel, const std::string& log) {
  for (const PtxasFunction& function : parse_ptxas_log(log)) {
    if (function.name != kernel) continue;
    KernelReport report;
    report.registers = function.registers;
    report.spill_bytes =
        function.spill_store_bytes + function.spill_load_bytes + function.stack_bytes;
    if (report.spill_bytes > 0)
      report.problem = "it spills\n" + log;
    else if (has_warnings(log))
      report.problem = "there are warnings\n" + log;
    return report;
  }
  return {.problem = "ptxas does not mention it\n" + log};
}

// Compiles the kernel as the engine does: for all RoPE tables.
inline KernelReport compile_for_report(const RenderedKernel& rendered, const Arch& arch) {
  try {
    const RenderedKernel kernel = shared_form(rendered);
    std::vector<std::string> options = NvrtcCompiler(nullptr).options(arch);
    options.push_back("--no-cache");
    const CompiledProgram program = compile_program(shared_engine().nvrtc().library(),
                                                    {kernel.entry + ".cu", kernel.source, options});
    KernelReport report = read_report(kernel.entry, program.log);
    if (!serves_all_tables(kernel, program.cubin))
      report.problem = "its instructions have words of the RoPE table";
    report.cubin_bytes = program.cubin.size();
    report.sass = sass_digest(program.cubin);
    return report;
  } catch (const std::exception& error) {
    return {.problem = error.what()};
  }
}

}  // namespace lazyrope
