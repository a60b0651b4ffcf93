#include "runtime/driver/compiler.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "runtime/base/error.h"
#include "runtime/driver/nvrtc.h"
#include "runtime/driver/ptxas_log.h"

namespace lazyrope {
namespace {

// NVRTC has a cache of its own since 12.9. --no-cache turns it off, because lazyrope's cache takes
// its place. --minimal leaves out the parts of NVRTC's built-in header that no kernel uses
// (textures, types of the CUDA runtime), which saves 3 ms per kernel.
constexpr NvrtcVersion kHasBothOptions = {12, 9};

ProgramSource program_of(const RenderedKernel& kernel, std::vector<std::string> options,
                         const NvrtcLibrary& nvrtc) {
  if (nvrtc.version() >= kHasBothOptions)
    options.insert(options.end(), {"--no-cache", "--minimal"});
  return {kernel.entry + ".cu", kernel.source, std::move(options)};
}

std::string identity_of(const NvrtcLibrary& nvrtc) { return "nvrtc " + nvrtc.identity(); }

}  // namespace

std::vector<std::string> NvrtcCompiler::options(const Arch& arch) const {
  return {fmt::format("--gpu-architecture={}", arch.name), "--std=c++20",
          "--device-as-default-execution-space", "--ptxas-options=-v"};
}

std::string NvrtcCompiler::identity() {
  try {
    return identity_of(nvrtc_->library());
  } catch (const CompileError&) {
    return {};
  }
}

void NvrtcCompiler::check(const Arch& arch) const {
  const NvrtcLibrary& nvrtc = nvrtc_->library();
  const std::vector<int>& supported = nvrtc.supported_archs();
  if (std::ranges::count(supported, 10 * arch.major + arch.minor) > 0) return;
  throw CompileError(
      {.what_failed = fmt::format("NVRTC {}.{}, {}, does not compile for {}; it compiles for sm_{}",
                                  nvrtc.version().major, nvrtc.version().minor, nvrtc.path(),
                                  arch.name, fmt::join(supported, ", sm_")),
       .advice = "set LAZYROPE_NVRTC to another NVRTC"});
}

const NvrtcLibrary& NvrtcCompiler::library() {
  return nvrtc_was_running_at_fork() ? copy_.get() : nvrtc_->library();
}

Binary NvrtcCompiler::compile(const RenderedKernel& kernel, const Arch& arch,
                              std::stop_token stop) {
  const NvrtcLibrary& nvrtc = library();
  CompiledProgram program =
      compile_program(nvrtc, program_of(kernel, options(arch), nvrtc), std::move(stop));
  Binary binary;
  binary.entry = kernel.entry;
  binary.arch = arch.name;
  binary.threads = kernel.threads;
  binary.shared_bytes = kernel.shared_bytes;
  binary.compiler = identity_of(nvrtc);
  binary.compile_ms = program.milliseconds;
  bool is_reported = false;
  for (const PtxasFunction& function : parse_ptxas_log(program.log)) {
    binary.spill_bytes +=
        function.spill_store_bytes + function.spill_load_bytes + function.stack_bytes;
    if (!function.is_kernel) continue;
    is_reported = true;
    binary.registers = function.registers;
  }
  if (!is_reported)
    throw CompileError({.what_failed = fmt::format("ptxas's log has no report on {}", kernel.entry),
                        .source = kernel.entry,
                        .log = program.log,
                        .advice = "set LAZYROPE_NVRTC to another NVRTC"});
  binary.code = std::move(program.cubin);
  return binary;
}

std::string NvrtcCompiler::intermediate(const RenderedKernel& kernel, const Arch& arch) {
  const NvrtcLibrary& nvrtc = library();
  const std::string virtual_arch = "compute_" + arch.name.substr(arch.name.find('_') + 1);
  return compile_to_ptx(nvrtc, program_of(kernel,
                                          {"--gpu-architecture=" + virtual_arch, "--std=c++20",
                                           "--device-as-default-execution-space"},
                                          nvrtc))
      .ptx;
}

}  // namespace lazyrope
