#include "runtime/driver/driver.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>

#include "runtime/base/dynamic_library.h"
#include "runtime/base/fork.h"
#include "runtime/base/log.h"

namespace lazyrope {
namespace {

constexpr const char* kDriverSoname = "libcuda.so.1";
constexpr const char* kVersionFile = "/proc/driver/nvidia/version";

// The symbols are spelled out, because the macros of cuda.h name the newest variants that the
// header knows. A driver of CUDA 12.0 may lack those.
template <class Visitor>
void visit_driver_symbols(DriverTable& table, Visitor visit) {
  visit("cuInit", table.init);
  visit("cuDriverGetVersion", table.driver_get_version);
  visit("cuGetErrorName", table.get_error_name);
  visit("cuGetErrorString", table.get_error_string);
  visit("cuDeviceGetCount", table.device_get_count);
  visit("cuDeviceGet", table.device_get);
  visit("cuDeviceGetName", table.device_get_name);
  visit("cuDeviceGetAttribute", table.device_get_attribute);
  visit("cuDevicePrimaryCtxRetain", table.primary_ctx_retain);
  visit("cuDevicePrimaryCtxRelease_v2", table.primary_ctx_release);
  visit("cuCtxGetCurrent", table.ctx_get_current);
  visit("cuCtxGetDevice", table.ctx_get_device);
  visit("cuCtxPushCurrent_v2", table.ctx_push_current);
  visit("cuCtxPopCurrent_v2", table.ctx_pop_current);
  visit("cuLibraryLoadData", table.library_load_data);
  visit("cuLibraryUnload", table.library_unload);
  visit("cuLibraryGetKernel", table.library_get_kernel);
  visit("cuKernelGetFunction", table.kernel_get_function);
  visit("cuKernelSetAttribute", table.kernel_set_attribute);
  visit("cuLaunchKernelEx", table.launch_kernel);
  visit("cuMemAlloc_v2", table.mem_alloc);
  visit("cuMemFree_v2", table.mem_free);
  visit("cuMemHostAlloc", table.mem_host_alloc);
  visit("cuMemFreeHost", table.mem_free_host);
  visit("cuMemGetInfo_v2", table.mem_get_info);
  visit("cuMemcpyDtoHAsync_v2", table.memcpy_dtoh_async);
  visit("cuMemcpyHtoDAsync_v2", table.memcpy_htod_async);
  visit("cuMemsetD8Async", table.memset_d8_async);
  visit("cuTensorMapEncodeTiled", table.tensor_map_encode_tiled);
  visit("cuEventCreate", table.event_create);
  visit("cuEventRecord", table.event_record);
  visit("cuEventSynchronize", table.event_synchronize);
  visit("cuEventElapsedTime", table.event_elapsed_time);
  visit("cuEventDestroy_v2", table.event_destroy);
  visit("cuStreamCreate", table.stream_create);
  visit("cuStreamDestroy_v2", table.stream_destroy);
  visit("cuStreamSynchronize", table.stream_synchronize);
  visit("cuStreamIsCapturing", table.stream_is_capturing);
  visit("cuThreadExchangeStreamCaptureMode", table.thread_exchange_capture_mode);
}

std::string version_text(decltype(&::cuDriverGetVersion) query) {
  int version = 0;
  if (query == nullptr || query(&version) != CUDA_SUCCESS) return "an unknown CUDA version";
  return cuda_version_text(version);
}

DriverError no_driver(const std::string& soname, const char* reason) {
  DriverFailure failure;
  failure.call = "dlopen";
  failure.text = fmt::format("no NVIDIA driver: {} could not be opened ({})", soname, reason);
  failure.advice =
      "rendering, compiling for a named arch (arch=\"sm_90a\") and the cache work without one, and "
      "arch=\"emu:sm_80\" runs kernels on the CPU, slowly; to run them on a GPU, install the "
      "driver, "
      "or start the container with its GPU (--gpus all)";
  return DriverError(std::move(failure));
}

DriverError driver_too_old(const std::string& missing, const std::string& version) {
  DriverFailure failure;
  failure.call = "dlsym";
  failure.text = fmt::format("the NVIDIA driver has no {}: it is of {}", missing, version);
  failure.advice =
      "update it: lazyrope needs a driver of CUDA 12.0 (R525) or newer, and kernels compiled by "
      "NVRTC 13 need one of CUDA 13.0 (R580)";
  return DriverError(std::move(failure));
}

const char* advice_for(CUresult result) {
  switch (result) {
    case CUDA_ERROR_OUT_OF_MEMORY:
      return "free device memory, or plan for a smaller capacity";
    case CUDA_ERROR_NOT_INITIALIZED:
      return "CUDA does not survive a fork: start worker processes by spawn, or use CUDA in them "
             "only";
    case CUDA_ERROR_STUB_LIBRARY:
      return "the libcuda.so.1 found is the toolkit's stub: take its directory off LD_LIBRARY_PATH";
    case CUDA_ERROR_NO_DEVICE:
    case CUDA_ERROR_INVALID_DEVICE:
      return "check CUDA_VISIBLE_DEVICES and nvidia-smi";
    case CUDA_ERROR_INVALID_CONTEXT:
      return "no CUDA context is current on this thread, or it has been destroyed: select the "
             "tensors' device first (torch.cuda.set_device, cuCtxSetCurrent)";
    case CUDA_ERROR_INVALID_IMAGE:
    case CUDA_ERROR_NO_BINARY_FOR_GPU:
    case CUDA_ERROR_UNSUPPORTED_PTX_VERSION:
      return "the kernel was compiled for another GPU, or by an NVRTC newer than the driver: "
             "kernels of NVRTC 13 need a driver of CUDA 13.0 (R580), kernels of NVRTC 12 one of "
             "CUDA 12.0; `lazyrope doctor` shows which NVRTC was chosen, and why";
    case CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES:
      return "the launch asks for more registers, threads or shared memory than the GPU has";
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_LAUNCH_FAILED:
      return "a kernel of this process failed, perhaps one that other code launched earlier, and "
             "the CUDA context is lost: restart the process; compute-sanitizer or "
             "CUDA_LAUNCH_BLOCKING=1 names the kernel";
    case CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED:
    case CUDA_ERROR_STREAM_CAPTURE_INVALIDATED:
    case CUDA_ERROR_STREAM_CAPTURE_IMPLICIT:
      return "this cannot be captured into a CUDA graph: run it once before the capture begins";
    default:
      return "see CUresult in the CUDA driver API's manual; earlier work of the process may be the "
             "cause, which CUDA_LAUNCH_BLOCKING=1 shows";
  }
}

struct ProcessDriver {
  std::optional<Driver> driver;
  std::optional<DriverError> error;
};

ProcessDriver open_process_driver() {
  try {
    return {Driver::open(kDriverSoname), std::nullopt};
  } catch (const DriverError& error) {
    return {std::nullopt, error};
  }
}

// The driver's own locks do not survive a fork either, so a child must not even ask the driver.
DriverError driver_before_fork() {
  DriverFailure failure;
  failure.call = "cuInit";
  failure.text = "the NVIDIA driver was in use when this process was forked";
  failure.advice = advice_for(CUDA_ERROR_NOT_INITIALIZED);
  return DriverError(std::move(failure));
}

// True from the beginning of the driver's opening, and so also in a child that is forked meanwhile.
std::atomic<bool> driver_was_used = false;

std::unique_ptr<ProcessDriver> make_process_driver() {
  if (driver_was_used.exchange(true) && fork_count() > 0)
    return std::make_unique<ProcessDriver>(ProcessDriver{std::nullopt, driver_before_fork()});
  auto opened = std::make_unique<ProcessDriver>(open_process_driver());
  driver_was_used = opened->driver.has_value();
  return opened;
}

// It is never destroyed, because other objects' destructors may call the driver at exit.
PerProcess<ProcessDriver>& process_driver() {
  static auto& driver = *new PerProcess<ProcessDriver>(make_process_driver);
  return driver;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_process_driver() { (void)process_driver(); }

DynamicLibrary open_library(const std::string& soname) {
  try {
    return DynamicLibrary::open(soname);
  } catch (const std::runtime_error& error) {
    throw no_driver(soname, error.what());
  }
}

}  // namespace

std::optional<int> installed_cuda_version(const std::string& soname) {
  try {
    const DynamicLibrary library = DynamicLibrary::open(soname);
    const auto query =
        reinterpret_cast<decltype(&::cuDriverGetVersion)>(library.find("cuDriverGetVersion"));
    int version = 0;
    if (query != nullptr && query(&version) == CUDA_SUCCESS) return version;
  } catch (const std::runtime_error&) {
    return std::nullopt;  // machines without a GPU have no such library
  }
  return std::nullopt;
}

bool refuses_code(const DriverFailure& failure) {
  return failure.code == CUDA_ERROR_INVALID_IMAGE || failure.code == CUDA_ERROR_NO_BINARY_FOR_GPU ||
         failure.code == CUDA_ERROR_INVALID_PTX ||
         failure.code == CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
}

std::string cuda_version_text(int version) {
  return fmt::format("CUDA {}.{}", version / 1000, version % 1000 / 10);
}

std::string driver_release_in(const std::string& text) {
  constexpr std::string_view kSpace = " \t\n";
  for (std::size_t begin = 0, end = 0; end < text.size(); begin = end + 1) {
    end = std::min(text.find_first_of(kSpace, begin), text.size());
    const std::string word = text.substr(begin, end - begin);
    if (word.find('.') != std::string::npos &&
        word.find_first_not_of("0123456789.") == std::string::npos)
      return word;
  }
  return "";
}

DriverTable resolve_driver_table(const SymbolResolver& resolve) {
  DriverTable table;
  std::string missing;
  visit_driver_symbols(table, [&](const char* symbol, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(resolve(symbol));
    if (function == nullptr && missing.empty()) missing = symbol;
  });
  if (!missing.empty()) throw driver_too_old(missing, version_text(table.driver_get_version));
  return table;
}

const Driver& Driver::get() {
  const ProcessDriver& process = process_driver().get();
  if (process.error) throw DriverError(*process.error);
  return process.driver.value();
}

Driver Driver::open(const std::string& soname) {
  const DynamicLibrary library = open_library(soname);  // its code stays mapped (DynamicLibrary)
  Driver driver(resolve_driver_table([&](const char* symbol) { return library.find(symbol); }));
  driver.check(driver.table_.init(0), "cuInit");
  return driver;
}

int Driver::version() const {
  int version = 0;
  check(table_.driver_get_version(&version), "cuDriverGetVersion");
  return version;
}

std::string Driver::release() const {
  std::ifstream in(kVersionFile);
  std::string release = driver_release_in({std::istreambuf_iterator<char>(in), {}});
  return release.empty() ? cuda_version_text(version()) : release;
}

int Driver::device_count() const {
  int count = 0;
  check(table_.device_get_count(&count), "cuDeviceGetCount");
  return count;
}

CUdevice Driver::device(int ordinal) const {
  CUdevice device = 0;
  check(table_.device_get(&device, ordinal), "cuDeviceGet");
  return device;
}

std::string Driver::device_name(CUdevice device) const {
  std::array<char, 256> name{};
  check(table_.device_get_name(name.data(), static_cast<int>(name.size()), device),
        "cuDeviceGetName");
  return name.data();
}

int Driver::device_attribute(CUdevice_attribute attribute, CUdevice device) const {
  int value = 0;
  check(table_.device_get_attribute(&value, attribute, device), "cuDeviceGetAttribute");
  return value;
}

CUcontext Driver::retain_primary_context(CUdevice device) const {
  CUcontext context = nullptr;
  check(table_.primary_ctx_retain(&context, device), "cuDevicePrimaryCtxRetain");
  return context;
}

void Driver::release_primary_context(CUdevice device) const noexcept {
  check_release(table_.primary_ctx_release(device), "cuDevicePrimaryCtxRelease");
}

void Driver::push_context(CUcontext context) const {
  check(table_.ctx_push_current(context), "cuCtxPushCurrent");
}

void Driver::pop_context() const noexcept {
  CUcontext popped = nullptr;
  check_release(table_.ctx_pop_current(&popped), "cuCtxPopCurrent");
}

CUlibrary Driver::load_library(const void* image) const {
  CUlibrary library = nullptr;
  check(table_.library_load_data(&library, image, nullptr, nullptr, 0, nullptr, nullptr, 0),
        "cuLibraryLoadData");
  return library;
}

void Driver::unload_library(CUlibrary library) const noexcept {
  check_release(table_.library_unload(library), "cuLibraryUnload");
}

CUkernel Driver::library_kernel(CUlibrary library, const char* name) const {
  CUkernel kernel = nullptr;
  check(table_.library_get_kernel(&kernel, library, name), "cuLibraryGetKernel");
  return kernel;
}

CUfunction Driver::kernel_function(CUkernel kernel) const {
  CUfunction function = nullptr;
  check(table_.kernel_get_function(&function, kernel), "cuKernelGetFunction");
  return function;
}

void Driver::set_kernel_attribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                                  CUdevice device) const {
  check(table_.kernel_set_attribute(attribute, value, kernel, device), "cuKernelSetAttribute");
}

CUdeviceptr Driver::allocate(std::size_t bytes) const {
  CUdeviceptr pointer = 0;
  check(table_.mem_alloc(&pointer, bytes), "cuMemAlloc");
  return pointer;
}

void Driver::free(CUdeviceptr pointer) const noexcept {
  check_release(table_.mem_free(pointer), "cuMemFree");
}

void* Driver::allocate_host(std::size_t bytes) const {
  void* memory = nullptr;
  check(table_.mem_host_alloc(&memory, bytes, CU_MEMHOSTALLOC_PORTABLE), "cuMemHostAlloc");
  return memory;
}

void Driver::free_host(void* memory) const noexcept {
  check_release(table_.mem_free_host(memory), "cuMemFreeHost");
}

std::size_t Driver::free_bytes() const {
  std::size_t free = 0;
  std::size_t total = 0;
  check(table_.mem_get_info(&free, &total), "cuMemGetInfo");
  return free;
}

void Driver::copy_to_host_async(void* to, CUdeviceptr from, std::size_t bytes,
                                CUstream stream) const {
  check(table_.memcpy_dtoh_async(to, from, bytes, stream), "cuMemcpyDtoHAsync");
}

void Driver::copy_from_host_async(CUdeviceptr to, const void* from, std::size_t bytes,
                                  CUstream stream) const {
  check(table_.memcpy_htod_async(to, from, bytes, stream), "cuMemcpyHtoDAsync");
}

void Driver::fill8_async(CUdeviceptr to, unsigned char value, std::size_t count,
                         CUstream stream) const {
  check(table_.memset_d8_async(to, value, count, stream), "cuMemsetD8Async");
}

CUtensorMap Driver::encode_tensor_map(CUtensorMapDataType type, cuuint32_t rank, void* data,
                                      const cuuint64_t* dims, const cuuint64_t* strides,
                                      const cuuint32_t* box, CUtensorMapSwizzle swizzle,
                                      CUtensorMapL2promotion promotion) const {
  constexpr std::array<cuuint32_t, 5> kEveryElement = {1, 1, 1, 1, 1};
  CUtensorMap map{};
  check(table_.tensor_map_encode_tiled(&map, type, rank, data, dims, strides, box,
                                       kEveryElement.data(), CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                       promotion, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
        "cuTensorMapEncodeTiled");
  return map;
}

CUevent Driver::create_event(unsigned flags) const {
  CUevent event = nullptr;
  check(table_.event_create(&event, flags), "cuEventCreate");
  return event;
}

void Driver::record_event(CUevent event, CUstream stream) const {
  check(table_.event_record(event, stream), "cuEventRecord");
}

void Driver::synchronize_event(CUevent event) const {
  check(table_.event_synchronize(event), "cuEventSynchronize");
}

float Driver::elapsed_ms(CUevent begin, CUevent end) const {
  float milliseconds = 0;
  check(table_.event_elapsed_time(&milliseconds, begin, end), "cuEventElapsedTime");
  return milliseconds;
}

void Driver::destroy_event(CUevent event) const noexcept {
  check_release(table_.event_destroy(event), "cuEventDestroy");
}

CUstream Driver::create_stream() const {
  CUstream stream = nullptr;
  check(table_.stream_create(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
  return stream;
}

void Driver::destroy_stream(CUstream stream) const noexcept {
  check_release(table_.stream_destroy(stream), "cuStreamDestroy");
}

void Driver::synchronize_stream(CUstream stream) const {
  check(table_.stream_synchronize(stream), "cuStreamSynchronize");
}

std::string Driver::error_name(CUresult result) const {
  const char* name = nullptr;
  table_.get_error_name(result, &name);
  return name == nullptr ? "an error that this driver does not know" : name;
}

std::string Driver::error_text(CUresult result) const {
  const char* text = nullptr;
  table_.get_error_string(result, &text);
  return fmt::format("{} (driver of {})", text == nullptr ? "no description" : text,
                     version_text(table_.driver_get_version));
}

void Driver::fail(CUresult result, const char* call) const {
  throw DriverError(
      DriverFailure{call, result, error_name(result), error_text(result), advice_for(result)});
}

// A failed release is only logged: at process exit the driver has often unloaded before its users.
// NOLINTNEXTLINE(bugprone-exception-escape): fmt checks its formats at compile time
void Driver::check_release(CUresult result, const char* call) const noexcept {
  if (result == CUDA_SUCCESS) return;
  log_message(LogLevel::kDebug, "{} failed: {} ({})", call, error_name(result),
              static_cast<int>(result));
}

}  // namespace lazyrope
