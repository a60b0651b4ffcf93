#pragma once

#include <cuda.h>

#include <cstddef>
#include <functional>
#include <string>

#include "runtime/base/error.h"

namespace lazyrope {

// The functions of libcuda that lazyrope calls. resolve_driver_table() knows their symbols.
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

// The version in the text of /proc/driver/nvidia/version; empty where there is none.
std::string driver_release_in(const std::string& text);

// Address of a symbol of libcuda, or null.
using SymbolResolver = std::function<void*(const char* symbol)>;

// Fills the table. Throws DriverError when the driver is too old to have every symbol.
DriverTable resolve_driver_table(const SymbolResolver& resolve);

// The CUDA driver: checked calls through a table. A call that fails throws DriverError, except for
// those that give something back, which run in destructors: they log instead.
class Driver {
 public:
  // The process's driver, opened and initialised by the first call. While that fails, every call
  // throws the same DriverError.
  static const Driver& get();

  // Opens `soname` and initialises it. Throws DriverError.
  static Driver open(const std::string& soname);

  // A driver that calls `table`, which must be complete as far as it is used. Not initialised.
  static Driver for_testing(const DriverTable& table) { return Driver(table); }

  // The newest CUDA that the driver knows: 1000 * major + 10 * minor.
  int version() const;
  // The driver's own version, such as "580.159.04"; "CUDA 13.0" where the system does not tell.
  std::string release() const;

  int device_count() const;
  CUdevice device(int ordinal) const;
  std::string device_name(CUdevice device) const;
  int device_attribute(CUdevice_attribute attribute, CUdevice device) const;

  CUcontext retain_primary_context(CUdevice device) const;
  void release_primary_context(CUdevice device) const noexcept;
  // Null when no context is current on this thread.
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

  // `image` is a cubin; it may be freed afterwards.
  CUlibrary load_library(const void* image) const;
  void unload_library(CUlibrary library) const noexcept;
  CUkernel library_kernel(CUlibrary library, const char* name) const;
  // Loads the kernel's code into the current context now, so that a first launch under stream
  // capture does not have to.
  CUfunction kernel_function(CUkernel kernel) const;
  void set_kernel_attribute(CUfunction_attribute attribute, int value, CUkernel kernel,
                            CUdevice device) const;

  // `function` may be a CUkernel, cast.
  void launch_kernel(const CUlaunchConfig& config, CUfunction function, void** params) const {
    check(table_.launch_kernel(&config, function, params, nullptr), "cuLaunchKernelEx");
  }

  CUdeviceptr allocate(std::size_t bytes) const;
  void free(CUdeviceptr pointer) const noexcept;
  // Pinned memory of the host, from which copies are asynchronous.
  void* allocate_host(std::size_t bytes) const;
  void free_host(void* memory) const noexcept;
  // Of the current context's device.
  std::size_t free_bytes() const;
  void copy_to_host_async(void* to, CUdeviceptr from, std::size_t bytes, CUstream stream) const;
  void copy_from_host_async(CUdeviceptr to, const void* from, std::size_t bytes,
                            CUstream stream) const;
  void fill8_async(CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream) const;

  // Every element of the box, rows not interleaved, zeros beyond the tensor.
  CUtensorMap encode_tensor_map(CUtensorMapDataType type, cuuint32_t rank, void* data,
                                const cuuint64_t* dims, const cuuint64_t* strides,
                                const cuuint32_t* box, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion) const;

  CUevent create_event(unsigned flags = CU_EVENT_DEFAULT) const;
  void record_event(CUevent event, CUstream stream) const;
  // Waits until the work before the latest record has ended; at once where there is none.
  void synchronize_event(CUevent event) const;
  // Between two events that have happened.
  float elapsed_ms(CUevent begin, CUevent end) const;
  void destroy_event(CUevent event) const noexcept;

  // One that waits for no other.
  CUstream create_stream() const;
  void destroy_stream(CUstream stream) const noexcept;
  void synchronize_stream(CUstream stream) const;
  // True also for a capture that has been invalidated.
  bool is_capturing(CUstream stream) const {
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    check(table_.stream_is_capturing(stream, &status), "cuStreamIsCapturing");
    return status != CU_STREAM_CAPTURE_STATUS_NONE;
  }
  // Of the calling thread; `mode` becomes the one before.
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

// While it lives, its thread may allocate, free, load and unload although a stream is being
// captured, by this thread or another: otherwise such a call, which may be a garbage collector's,
// fails and breaks the capture (CUDA driver API, cuThreadExchangeStreamCaptureMode).
class AllowedInCapture {
 public:
  explicit AllowedInCapture(const Driver& driver) noexcept : driver_(driver) {
    driver_.exchange_capture_mode(mode_);
  }
  AllowedInCapture(const AllowedInCapture&) = delete;
  AllowedInCapture& operator=(const AllowedInCapture&) = delete;
  ~AllowedInCapture() { driver_.exchange_capture_mode(mode_); }

 private:
  const Driver& driver_;
  CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
};

}  // namespace lazyrope
