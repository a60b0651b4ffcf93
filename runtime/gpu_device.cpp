#include "runtime/gpu_device.h"

#include <deque>
#include <map>
#include <mutex>

namespace lazyrope {
namespace {

CUstream cuda_stream(Stream stream) { return static_cast<CUstream>(stream); }
CUdeviceptr cuda_address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

class GpuKernel : public LoadedKernel {
 public:
  GpuKernel(const Driver& driver, const DeviceInfo& device, const Binary& binary)
      : driver_(driver),
        device_(device),
        library_(load_library(driver, binary)),
        threads_(static_cast<unsigned>(binary.threads)),
        shared_bytes_(static_cast<unsigned>(binary.shared_bytes)) {
    const AllowedInCapture allowed(driver);
    try {
      const CUkernel kernel = driver.library_kernel(library_, binary.entry.c_str());
      driver.set_kernel_attribute(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                  binary.shared_bytes, kernel, device.handle);
      const ScopedContext context(driver, device);
      driver.kernel_function(kernel);
      kernel_ = reinterpret_cast<CUfunction>(kernel);
    } catch (...) {
      driver.unload_library(library_);
      throw;
    }
  }
  GpuKernel(const GpuKernel&) = delete;
  GpuKernel& operator=(const GpuKernel&) = delete;
  ~GpuKernel() override {
    const AllowedInCapture allowed(driver_);
    driver_.unload_library(library_);
  }

  void launch(int ctas, const void* params, Stream stream, ReachOf) const override {
    const ScopedContext context(driver_, device_);
    void* arguments[] = {const_cast<void*>(params)};
    driver_.launch_kernel(kernel_, static_cast<unsigned>(ctas), 1, 1, threads_, 1, 1, shared_bytes_,
                          cuda_stream(stream), arguments);
  }

 private:
  static CUlibrary load_library(const Driver& driver, const Binary& binary) {
    const AllowedInCapture allowed(driver);
    return driver.load_library(binary.code.data());
  }

  const Driver& driver_;
  const DeviceInfo& device_;
  CUlibrary library_;
  CUfunction kernel_ = nullptr;
  unsigned threads_;
  unsigned shared_bytes_;
};

class GpuEvent {
 public:
  explicit GpuEvent(const Driver& driver) : driver_(driver), event_(driver.create_event()) {}
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;
  ~GpuEvent() { driver_.destroy_event(event_); }

  void record(Stream stream) const { driver_.record_event(event_, cuda_stream(stream)); }
  double microseconds_since(const GpuEvent& begin) const {
    return 1e3 * static_cast<double>(driver_.elapsed_ms(begin.event_, event_));
  }

 private:
  const Driver& driver_;
  CUevent event_;
};

class GpuStopwatch : public Stopwatch {
 public:
  GpuStopwatch(const Driver& driver, const DeviceInfo& device) : driver_(driver), device_(device) {}

  std::vector<double> time(std::span<const std::function<void()>> calls, Stream stream) override {
    const ScopedContext context(driver_, device_);
    std::deque<GpuEvent> events;  // two a call; they cannot be moved
    while (events.size() < 2 * calls.size()) events.emplace_back(driver_);
    for (std::size_t i = 0; i < calls.size(); ++i) {
      events[2 * i].record(stream);
      calls[i]();
      events[2 * i + 1].record(stream);
    }
    driver_.synchronize_stream(cuda_stream(stream));
    std::vector<double> result;
    for (std::size_t i = 0; i < events.size(); i += 2)
      result.push_back(events[i + 1].microseconds_since(events[i]));
    return result;
  }

 private:
  const Driver& driver_;
  const DeviceInfo& device_;
};

}  // namespace

GpuDevice::GpuDevice(const Driver& driver, const DeviceInfo& info)
    : driver_(driver),
      info_(info),
      arch_(arch_for_device(info.compute_major, info.compute_minor)) {}

std::unique_ptr<LoadedKernel> GpuDevice::load(const Binary& binary) const {
  return std::make_unique<GpuKernel>(driver_, info_, binary);
}

std::size_t GpuDevice::free_bytes() const {
  const ScopedContext context(driver_, info_);
  return driver_.free_bytes();
}

void* GpuDevice::allocate(std::size_t bytes) const {
  const ScopedContext context(driver_, info_);
  const AllowedInCapture allowed(driver_);
  // Where nobody else has retained it, the context would end with the scope, the memory with it.
  if (context.is_borrowed())
    std::call_once(keeps_primary_context_, [&] { driver_.retain_primary_context(info_.handle); });
  return reinterpret_cast<void*>(driver_.allocate(bytes));
}

void GpuDevice::free(void* memory) const noexcept {
  try {
    const ScopedContext context(driver_, info_);
    const AllowedInCapture allowed(driver_);
    driver_.free(cuda_address(memory));
  } catch (...) {  // NOLINT(bugprone-empty-catch): the process is ending, the driver with it
  }
}

void GpuDevice::fill_zero(void* memory, std::size_t bytes, Stream stream) const {
  const ScopedContext context(driver_, info_);
  driver_.fill8_async(cuda_address(memory), 0, bytes, cuda_stream(stream));
}

void GpuDevice::copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) const {
  const ScopedContext context(driver_, info_);
  driver_.copy_to_host_async(to, cuda_address(from), bytes, cuda_stream(stream));
  driver_.synchronize_stream(cuda_stream(stream));
}

void GpuDevice::copy_from_host(void* to, const void* from, std::size_t bytes, Stream stream) const {
  const ScopedContext context(driver_, info_);
  driver_.copy_from_host_async(cuda_address(to), from, bytes, cuda_stream(stream));
  driver_.synchronize_stream(cuda_stream(stream));
}

std::unique_ptr<Stopwatch> GpuDevice::stopwatch() const {
  return std::make_unique<GpuStopwatch>(driver_, info_);
}

bool GpuDevice::is_capturing(Stream stream) const {
  const ScopedContext context(driver_, info_);
  return driver_.is_capturing(cuda_stream(stream));
}

std::shared_ptr<const Device> gpu_device(int ordinal) {
  static std::mutex mutex;
  static std::map<int, std::shared_ptr<const Device>> devices;
  const std::lock_guard lock(mutex);
  std::shared_ptr<const Device>& device = devices[ordinal];
  if (device == nullptr)
    device = std::make_shared<GpuDevice>(Driver::get(), Devices::get().info(ordinal));
  return device;
}

}  // namespace lazyrope
