#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <optional>
#include <string>

#include "runtime/base/error.h"

namespace lazyrope {

// The functions of libcuda that lazyrope calls; resolve_driver_table() knows their symbols.
struct DriverTable {
  decltype(&::cuInit) init = nullptr;
  decltype(&::cuDriverGetVersion) driver_get_version = nullptr;
  decltype(&::cuGetErrorName) get_error_name = nullptr;
  decltype(&::cuGetErrorString) get_error_string = nullptr;

  decltype(&::cuDeviceGetCount) device_get_count = nullptr;
  decltype(&::cuDeviceGet) device_get = nullptr;
  decltype(&::cuDeviceGetName) device_get_name = nullptr;
  decltype(&::cuDeviceGetAttribute) device_get_attribute = nullptr;

  decltype(&::cuDevicePrimaryCtxRetain) primary_ctx_retain = nullptr;
  decltype(&::cuDevicePrimaryCtxRelease) primary_ctx_release = nullptr;
  decltype(&::cuCtxGetCurrent) ctx_get_current = nullptr;
  decltype(&::cuCtxGetDevice) ctx_get_device = nullptr;
  decltype(&::cuCtxPushCurrent) ctx_push_current = nullptr;
  decltype(&::cuCtxPopCurrent) ctx_pop_current = nullptr;

  decltype(&::cuLibraryLoadData) library_load_data = nullptr;
  decltype(&::cuLibraryUnload) library_unload = nullptr;
  decltype(&::cuLibraryGetKernel) library_get_kernel = nullptr;
  decltype(&::cuKernelGetFunction) kernel_get_function = nullptr;
  decltype(&::cuKernelSetAttribute) kernel_set_attribute = nullptr;
  decltype(&::cuLaunchKernelEx) launch_kernel = nullptr;

  decltype(&::cuMemAlloc) mem_alloc = nullptr;
  decltype(&::cuMemFree) mem_free = nullptr;
  decltype(&::cuMemHostAlloc) mem_host_alloc = nullptr;
  decltype(&::cuMemFreeHost) mem_free_host = nullptr;
  decltype(&::cuMemGetInfo) mem_get_info = nullptr;
  decltype(&::cuMemcpyDtoHAsync) memcpy_dtoh_async = nullptr;
  decltype(&::cuMemcpyHtoDAsync) memcpy_htod_async = nullptr;
  decltype(&::cuMemsetD8Async) memset_d8_async = nullptr;

  decltype(&::cuTensorMapEncodeTiled) tensor_map_encode_tiled = nullptr;

  decltype(&::cuEventCreate) event_create = nullptr;
  decltype(&::cuEventRecord) event_record = nullptr;
  decltype(&::cuEventSynchronize) event_synchronize = nullptr;
  decltype(&::cuEventElapsedTime) event_elapsed_time = nullptr;
  decltype(&::cuEventDestroy) event_destroy = nullptr;

  decltype(&::cuStreamCreate) stream_create = nullptr;
  decltype(&::cuStreamDestroy) stream_destroy = nullptr;
  decltype(&::cuStreamSynchronize) stream_synchronize = nullptr;
  decltype(&::cuStreamIsCapturing) stream_is_capturing = nullptr;
  decltype(&::cuThreadExchangeStreamCaptureMode) thread_exchange_capture_mode = nullptr;
};

// Returns the newest CUDA version that the installed driver supports, as Driver::version() does, or
// nothing if there is no driver. It does not initialise CUDA, because CUDA does not survive a fork.
std::optional<int> installed_cuda_version(const std::string& soname = "libcuda.so.1");

// Returns true if the driver refused the code itself, and not because of the machine's state.
bool refuses_code(const DriverFailure& failure);

// Returns a CUDA version as text: "CUDA 13.0" for 13000.
std::string cuda_version_text(int version);

// Returns the driver's version in the text of /proc/driver/nvidia/version, or "" if it has none.
std::string driver_release_in(const std::string& text);

// Returns the address of a symbol of libcuda, or null.
using SymbolResolver = std::function<void*(const char* symbol)>;

// Fills the table. Throws DriverError when the driver is too old to have every symbol.
DriverTable resolve_driver_table(const SymbolResolver& resolve);

// The CUDA driver: checked calls through a table of its functions. A failed call throws
// DriverError. Release functions run in destructors, so they log a failure instead. Safe to use
// from several threads.
class Driver {
 public:
  // Returns the process's driver, which the first call opens and initialises. If that fails, every
  // call throws the same DriverError.
  static const Driver& get();

  // Opens `soname` and initialises it. Throws DriverError.
  static Driver open(const std::string& soname);

  // Makes a driver that calls `table` and is not initialised. Only the functions in use must be
  // set.
  static Driver for_testing(const DriverTable& table) { return Driver(table); }

  // Returns the newest CUDA version that the driver supports: 1000 * major + 10 * minor.
  int version() const;
  // Returns the driver's own version, such as "580.159.04". If the system does not show it, returns
  // the newest CUDA version that the driver supports, such as "CUDA 13.0".
  std::string release() const;

  int device_count() const;
  CUdevice device(int ordinal) const;
  std::string device_name(CUdevice device) const;
  int device_attribute(CUdevice_attribute attribute, CUdevice device) const;

  CUcontext retain_primary_context(CUdevice device) const;
  void release_primary_context(CUdevice device) const noexcept;
  // Returns null when no context is current on this thread.
  CUcontext current_context() const {
    CUcontext context = nullptr;
    check(table_.ctx_get_current(&context), "cuCtxGetCurrent");
    return context;
  }
  CUdevice current_context_device() const {
    CUdevice device = 0;
    check(table_.ctx_get_device(&device), "cuCtxGetDevice");
    return device;
  }
  void push_context(CUcontext context) const;
  void pop_context() const noexcept;

  // Loads a cubin. `image` may be freed after the call.
  CUlibrary load_library(const void* image) const;
  void unload_library(CUlibrary library) const noexcept;
  CUkernel library_kernel(CUlibrary library, const char* name) const;
  // Returns the kernel's function in the current context, and loads its code. Otherwise the first
  // launch would load the code, which fails during a stream capture.
  CUfunction kernel_function(CUkernel kernel) const;
  void set_kernel_attribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                            CUdevice device) const;

  // Launches `function`, which may be a CUkernel that is cast to CUfunction.
  void launch_kernel(const CUlaunchConfig& config, CUfunction function, void** params) const {
    check(table_.launch_kernel(&config, function, params, nullptr), "cuLaunchKernelEx");
  }

  CUdeviceptr allocate(std::size_t bytes) const;
  void free(CUdeviceptr pointer) const noexcept;
  // Allocates pinned host memory, from which copies are asynchronous.
  void* allocate_host(std::size_t bytes) const;
  void free_host(void* memory) const noexcept;
  // Returns the free memory of the current context's device.
  std::size_t free_bytes() const;
  void copy_to_host_async(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) const;
  void copy_from_host_async(CUdeviceptr to, const void* from, std::size_t bytes,
                            CUstream stream) const;
  void fill8_async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) const;

  // Encodes a tiled map with element strides of 1, without interleaving, and with zeros outside the
  // tensor.
  CUtensorMap encode_tensor_map(CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion) const;

  CUevent create_event(unsigned flags = CU_EVENT_DEFAULT) const;
  void record_event(CUevent event, CUstream stream) const;
  // Waits until the work before the latest record of the event has ended. Returns at once if there
  // is no record.
  void synchronize_event(CUevent event) const;
  // Returns the time between two events that have happened.
  float elapsed_ms(CUevent begin, CUevent end) const;
  void destroy_event(CUevent event) const noexcept;

  // Makes a stream that does not synchronise with the default stream.
  CUstream create_stream() const;
  void destroy_stream(CUstream stream) const noexcept;
  void synchronize_stream(CUstream stream) const;
  // Returns true for a stream under capture, even if the capture has been invalidated.
  bool is_capturing(CUstream stream) const {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    check(table_.stream_is_capturing(stream, &status), "cuStreamIsCapturing");
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  }
  // Sets the calling thread's capture mode to `mode`, and sets `mode` to the previous one.
  void exchange_capture_mode(CUstreamCaptureMode& mode) const noexcept {
    check_release(table_.thread_exchange_capture_mode(&mode), "cuThreadExchangeStreamCaptureMode");
  }

 private:
  explicit Driver(const DriverTable& table) : table_(table) {}

  void check(CUresult result, const char* call) const {
    if (result != CUDA_SUCCESS) [[unlikely]] {
      fail(result, call);
    }
  }
  [[noreturn]] void fail(CUresult result, const char* call) const;
  void check_release(CUresult result, const char* call) const noexcept;
  std::string error_name(CUresult result) const;
  std::string error_text(CUresult result) const;

  DriverTable table_;
};

// Allows this thread to allocate, free, load and unload during a stream capture of any thread,
// while this object lives. Otherwise such a call fails and invalidates the capture, even if a
// garbage collector makes it (CUDA driver API, cuThreadExchangeStreamCaptureMode).
class RelaxedCaptureScope {
 public:
  explicit RelaxedCaptureScope(const Driver& driver) noexcept : driver_(driver) {
    driver_.exchange_capture_mode(mode_);
  }
  RelaxedCaptureScope(const RelaxedCaptureScope&) = delete;
  RelaxedCaptureScope& operator=(const RelaxedCaptureScope&) = delete;
  ~RelaxedCaptureScope() { driver_.exchange_capture_mode(mode_); }

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace lazyrope
