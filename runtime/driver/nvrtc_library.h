#pragma once

#include <nvrtc.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/dynamic_library.h"
#include "runtime/base/fork.h"
#include "runtime/driver/driver.h"

namespace lazyrope {

// NVRTC's functions: get_ptx is nvrtcGetPTX, and so on.
struct NvrtcTable {
  decltype(&::nvrtcVersion) version = nullptr;
  decltype(&::nvrtcGetErrorString) get_error_string = nullptr;
  decltype(&::nvrtcGetNumSupportedArchs) get_num_supported_archs = nullptr;
  decltype(&::nvrtcGetSupportedArchs) get_supported_archs = nullptr;
  decltype(&::nvrtcCreateProgram) create_program = nullptr;
  decltype(&::nvrtcDestroyProgram) destroy_program = nullptr;
  decltype(&::nvrtcCompileProgram) compile_program = nullptr;
  decltype(&::nvrtcGetPTXSize) get_ptx_size = nullptr;
  decltype(&::nvrtcGetPTX) get_ptx = nullptr;
  decltype(&::nvrtcGetCUBINSize) get_cubin_size = nullptr;
  decltype(&::nvrtcGetCUBIN) get_cubin = nullptr;
  decltype(&::nvrtcGetProgramLogSize) get_program_log_size = nullptr;
  decltype(&::nvrtcGetProgramLog) get_program_log = nullptr;
  // nvrtcSetFlowCallback, or null before NVRTC 12.9.
  nvrtcResult (*set_flow_callback)(nvrtcProgram, int (*)(void*, void*), void*) = nullptr;
};

struct NvrtcVersion {
  int major = 0;
  int minor = 0;
  auto operator<=>(const NvrtcVersion&) const = default;
};

// Returns the NVRTC version of a Binary::compiler such as "nvrtc 13.0-...", or nothing if the
// compiler is not NVRTC.
std::optional<NvrtcVersion> nvrtc_version_of(std::string_view compiler);

// Returns why a driver of this CUDA version loads no kernel of this NVRTC, and what to do, or "" if
// it loads them. A driver loads the kernels of its own major version, whatever the minor versions,
// and of older ones (NVIDIA's CUDA Compatibility guide).
std::string driver_conflict(NvrtcVersion nvrtc, std::optional<int> driver_version);

// An NVRTC that can compile: opened, complete, and with its builtins library loaded. Safe to use
// from several threads at once.
class NvrtcLibrary {
 public:
  // Also loads the builtins library, unless the process has it already: the one beside NVRTC, where
  // NVRTC itself would not look, or else the loader's. Throws std::runtime_error, which says what
  // is missing.
  explicit NvrtcLibrary(DynamicLibrary library);

  const NvrtcTable& api() const noexcept { return api_; }
  NvrtcVersion version() const noexcept { return version_; }

  // Returns the architectures that it compiles for, ascending: 80 for sm_80.
  const std::vector<int>& supported_archs() const noexcept { return archs_; }

  const std::string& path() const noexcept { return library_.path(); }
  const std::string& builtins_path() const noexcept { return builtins_.path(); }

  // Identifies the exact compiler, for cache keys: "13.0-<build-id>-<build-id of the builtins>". A
  // library without a build-id is identified by its file size. Paths do not matter.
  const std::string& identity() const noexcept { return identity_; }

 private:
  DynamicLibrary library_;
  NvrtcTable api_;
  NvrtcVersion version_;
  DynamicLibrary builtins_;
  std::vector<int> archs_;
  std::string identity_;
};

// The locations where NVRTC is looked for.
struct NvrtcSearch {
  // The only path or soname to use (Config::nvrtc_path). If it is empty, the others are tried.
  std::string configured = {};
  // Major versions of NVRTC, newest first. Those that the driver loads are looked for before those
  // that are too new for it. Each of them is looked for among the libraries that this process has
  // loaded, and then in the directories below.
  std::vector<int> majors = {13, 12};
  // Directories of Python packages (Config::nvrtc_directories).
  std::vector<std::string> directories = {};
  // System directories; the empty string is the loader's own search path.
  std::vector<std::string> system_directories = {"", "/usr/local/cuda/lib64"};
  // Returns the CUDA version of the driver, or nothing if there is no driver and thus no limit.
  std::function<std::optional<int>()> driver_version = [] { return installed_cuda_version(); };
};

// One location where NVRTC was looked for.
struct NvrtcAttempt {
  std::string location;  // which step of the search, e.g. "already loaded"
  std::string file;      // soname or path; empty if the step was skipped
  std::string outcome;   // "no such file", "opened: PATH, identity ...", or the reason against it
};

// One search for NVRTC, and its result.
class NvrtcFinding {
 public:
  explicit NvrtcFinding(const NvrtcSearch& search);

  const std::vector<NvrtcAttempt>& attempts() const { return attempts_; }
  // Returns the NVRTC found, or null.
  const NvrtcLibrary* library() const { return library_ ? &*library_ : nullptr; }

 private:
  void search_for(const std::string& soname);
  void try_loaded(const std::string& soname);
  void try_open(const char* location, const std::string& file);
  void accept(const char* location, const std::string& file, DynamicLibrary library);

  const NvrtcSearch& search_;
  std::vector<NvrtcAttempt> attempts_;
  std::optional<NvrtcLibrary> library_;
};

// Finds NVRTC when it is first needed, and keeps it. A search that fails is repeated by the next
// call, because its cause may have been temporary, such as too many open files. Safe to use from
// several threads.
class NvrtcLocator {
 public:
  explicit NvrtcLocator(NvrtcSearch search) : search_(std::move(search)) {}

  // Returns the NVRTC found. Throws CompileError, which names every location tried, if none is
  // usable.
  const NvrtcLibrary& library();

  // Returns every location tried, in order. If library() succeeds, the last one is the one chosen.
  std::vector<NvrtcAttempt> attempts();

 private:
  std::unique_ptr<const NvrtcFinding> find() const;

  NvrtcSearch search_;
  Lazy<const NvrtcFinding> finding_{[this] { return find(); }};
};

}  // namespace lazyrope
