#pragma once

#include <cstddef>
#include <stop_token>
#include <string>
#include <vector>

#include "runtime/driver/nvrtc_library.h"

namespace lazyrope {

// A program to compile. NVRTC's messages use `name` as its file name.
struct ProgramSource {
  std::string name;
  std::string source;
  std::vector<std::string> options;  // one NVRTC option each, e.g. "--gpu-architecture=sm_90a"
};

// A compiled cubin and its log.
struct CompiledProgram {
  std::vector<std::byte> cubin;
  std::string log;  // NVRTC's warnings and, if asked for, ptxas's report (see ptxas_log.h)
  double milliseconds = 0;
};

// PTX text and its log.
struct PtxProgram {
  std::string ptx;
  std::string log;
  double milliseconds = 0;
};

// Compiles to a cubin. The options must name a real architecture (sm_XX). Throws CompileError with
// the log and the source lines that it names. If a stop is requested, it soon throws Stopped, where
// this NVRTC can stop. Safe to call from several threads at once.
CompiledProgram compile_program(const NvrtcLibrary& nvrtc, const ProgramSource& program,
                                std::stop_token stop = {});

// Compiles to PTX text. With a virtual architecture (compute_XX), ptxas does not run. Throws as
// compile_program does.
PtxProgram compile_to_ptx(const NvrtcLibrary& nvrtc, const ProgramSource& program);

// Returns true in a child that was forked while a thread of the parent, or of its parents, was in
// NVRTC. NVRTC's own locks may then stay locked, so the child needs a copy of the library.
bool nvrtc_was_running_at_fork();

}  // namespace lazyrope
