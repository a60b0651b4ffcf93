#include "runtime/driver/nvrtc_library.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <csignal>
#include <filesystem>
#include <stdexcept>
#include <utility>

#include "runtime/base/error.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

// While NVRTC parses, up to 0.2 s a kernel, it would replace the process's handlers of SIGINT and
// SIGTERM by one that ends the process with exit(4): Ctrl-C would raise no KeyboardInterrupt, and a
// server would not shut down in order. Where a signal is ignored, NVRTC leaves it so. This function
// takes the place of signal() in its calls, and says that every signal is ignored.
sighandler_t leave_handler(int, sighandler_t) { return SIG_IGN; }

DynamicLibrary with_handlers_left(DynamicLibrary nvrtc) {
  nvrtc.redirect("signal", reinterpret_cast<void*>(leave_handler));
  return nvrtc;
}

template <class Function>
void resolve(const DynamicLibrary& library, const char* symbol, Function& function) {
  function = reinterpret_cast<Function>(library.find(symbol));
  if (function == nullptr) {
    throw std::runtime_error(
        fmt::format("it has no {}: it is not NVRTC, or is older than 12.0", symbol));
  }
}

NvrtcTable resolve_table(const DynamicLibrary& library) {
  NvrtcTable table;
  resolve(library, "nvrtcVersion", table.version);
  resolve(library, "nvrtcGetErrorString", table.get_error_string);
  resolve(library, "nvrtcGetNumSupportedArchs", table.get_num_supported_archs);
  resolve(library, "nvrtcGetSupportedArchs", table.get_supported_archs);
  resolve(library, "nvrtcCreateProgram", table.create_program);
  resolve(library, "nvrtcDestroyProgram", table.destroy_program);
  resolve(library, "nvrtcCompileProgram", table.compile_program);
  resolve(library, "nvrtcGetPTXSize", table.get_ptx_size);
  resolve(library, "nvrtcGetPTX", table.get_ptx);
  resolve(library, "nvrtcGetCUBINSize", table.get_cubin_size);
  resolve(library, "nvrtcGetCUBIN", table.get_cubin);
  resolve(library, "nvrtcGetProgramLogSize", table.get_program_log_size);
  resolve(library, "nvrtcGetProgramLog", table.get_program_log);
  table.set_flow_callback =
      reinterpret_cast<decltype(table.set_flow_callback)>(library.find("nvrtcSetFlowCallback"));
  return table;
}

NvrtcVersion query_version(const NvrtcTable& api) {
  NvrtcVersion version;
  if (api.version(&version.major, &version.minor) != NVRTC_SUCCESS) {
    throw std::runtime_error("nvrtcVersion failed");
  }
  return version;
}

std::vector<int> query_archs(const NvrtcTable& api) {
  int count = 0;
  if (api.get_num_supported_archs(&count) != NVRTC_SUCCESS || count <= 0) return {};
  std::vector<int> archs(static_cast<std::size_t>(count));
  if (api.get_supported_archs(archs.data()) != NVRTC_SUCCESS) return {};
  return archs;
}

// NVRTC opens its builtins by soname, and uses a library of that soname if the process has loaded
// one. So this function returns the loaded library first.
DynamicLibrary load_builtins(const DynamicLibrary& nvrtc, NvrtcVersion version) {
  const std::string soname =
      fmt::format("libnvrtc-builtins.so.{}.{}", version.major, version.minor);
  if (auto loaded = DynamicLibrary::already_loaded(soname)) return std::move(*loaded);
  std::error_code ignored;
  for (const fs::path& file : {fs::path(nvrtc.path()), fs::canonical(nvrtc.path(), ignored)}) {
    const fs::path beside = file.parent_path() / soname;
    if (fs::exists(beside, ignored)) return DynamicLibrary::open(beside.string());
  }
  return DynamicLibrary::open(soname);
}

// Some packages of NVRTC 12 were patched after linking, and their build-id cannot be read.
std::string content_id(const DynamicLibrary& library) {
  const std::string id = library.build_id();
  return id.empty() ? fmt::format("size{}", fs::file_size(library.path())) : id;
}

std::string make_identity(NvrtcVersion version, const DynamicLibrary& library,
                          const DynamicLibrary& builtins) {
  return fmt::format("{}.{}-{}-{}", version.major, version.minor, content_id(library),
                     content_id(builtins));
}

std::string describe(const NvrtcLibrary& nvrtc) {
  return fmt::format("opened: {}, identity {}, builtins {}", nvrtc.path(), nvrtc.identity(),
                     nvrtc.builtins_path());
}

CompileFailure not_found(const std::vector<NvrtcAttempt>& attempts) {
  CompileFailure failure;
  failure.what_failed = "no usable NVRTC (libnvrtc.so), which compiles lazyrope's kernels";
  failure.advice =
      "pip install \"nvidia-cuda-nvrtc>=13.0,<14\", or set LAZYROPE_NVRTC to the path of a "
      "libnvrtc.so with its libnvrtc-builtins.so beside it; kernels in the cache need neither";
  for (const NvrtcAttempt& tried : attempts) {
    failure.log += fmt::format("{}{}{}{}: {}", failure.log.empty() ? "" : "\n", tried.location,
                               tried.file.empty() ? "" : " ", tried.file, tried.outcome);
  }
  return failure;
}

}  // namespace

std::optional<NvrtcVersion> nvrtc_version_of(std::string_view compiler) {
  constexpr std::string_view kName = "nvrtc ";
  if (!compiler.starts_with(kName)) return std::nullopt;
  const char* const end = compiler.data() + compiler.size();
  NvrtcVersion version;
  const auto [dot, error] = std::from_chars(compiler.data() + kName.size(), end, version.major);
  if (error != std::errc() || dot == end || *dot != '.') return std::nullopt;
  if (std::from_chars(dot + 1, end, version.minor).ec != std::errc()) return std::nullopt;
  return version;
}

std::string driver_conflict(NvrtcVersion nvrtc, std::optional<int> driver_version) {
  if (!driver_version || nvrtc.major <= *driver_version / 1000) return "";
  return fmt::format(
      "NVRTC {0}.{1} is too new for the driver, which is of {2} and loads no kernel of CUDA {0}: "
      "update the driver to one of CUDA {0}.0 or newer, or pip install nvidia-cuda-nvrtc-cu{3}",
      nvrtc.major, nvrtc.minor, cuda_version_text(*driver_version), *driver_version / 1000);
}

NvrtcLibrary::NvrtcLibrary(DynamicLibrary library)
    : library_(with_handlers_left(std::move(library))),
      api_(resolve_table(library_)),
      version_(query_version(api_)),
      builtins_(load_builtins(library_, version_)),
      archs_(query_archs(api_)),
      identity_(make_identity(version_, library_, builtins_)) {}

const NvrtcLibrary& NvrtcLocator::library() { return *finding_.get().library(); }

std::vector<NvrtcAttempt> NvrtcLocator::attempts() {
  try {
    return finding_.get().attempts();
  } catch (const CompileError&) {
    return NvrtcFinding(search_).attempts();
  }
}

std::unique_ptr<const NvrtcFinding> NvrtcLocator::find() const {
  auto finding = std::make_unique<const NvrtcFinding>(search_);
  if (finding->library() == nullptr) throw CompileError(not_found(finding->attempts()));
  return finding;
}

NvrtcFinding::NvrtcFinding(const NvrtcSearch& search) : search_(search) {
  constexpr const char* kConfigured = "configured (LAZYROPE_NVRTC)";
  if (!search_.configured.empty()) {
    try_open(kConfigured, search_.configured);
    return;  // no other compiler replaces the one that the user asked for
  }
  attempts_.push_back({kConfigured, "", "not set"});
  const std::optional<int> driver = search_.driver_version();
  std::vector<int> majors = search_.majors;
  std::ranges::stable_partition(
      majors, [&](int major) { return driver_conflict({major, 0}, driver).empty(); });
  for (const int major : majors)
    if (!library_) search_for(fmt::format("libnvrtc.so.{}", major));
}

void NvrtcFinding::search_for(const std::string& soname) {
  const auto try_in = [&](const char* location, const std::vector<std::string>& directories) {
    for (const std::string& directory : directories)
      if (!library_) try_open(location, (fs::path(directory) / soname).string());
  };
  try_loaded(soname);
  try_in("Python package", search_.directories);
  try_in("system", search_.system_directories);
}

void NvrtcFinding::try_loaded(const std::string& soname) {
  constexpr const char* kLocation = "already loaded";
  if (auto loaded = DynamicLibrary::already_loaded(soname)) {
    accept(kLocation, soname, std::move(*loaded));
  } else {
    attempts_.push_back({kLocation, soname, "not loaded"});
  }
}

void NvrtcFinding::try_open(const char* location, const std::string& file) {
  std::error_code ignored;
  if (fs::path(file).has_parent_path() && !fs::exists(file, ignored)) {
    attempts_.push_back({location, file, "no such file"});
    return;
  }
  try {
    accept(location, file, DynamicLibrary::open(file));
  } catch (const std::runtime_error& error) {
    attempts_.push_back({location, file, error.what()});
  }
}

void NvrtcFinding::accept(const char* location, const std::string& file, DynamicLibrary library) {
  try {
    library_.emplace(std::move(library));
    attempts_.push_back({location, file, describe(*library_)});
  } catch (const std::runtime_error& error) {
    attempts_.push_back({location, file, fmt::format("not usable: {}", error.what())});
  }
}

}  // namespace lazyrope
