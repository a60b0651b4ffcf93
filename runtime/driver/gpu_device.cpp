#include "runtime/driver/gpu_device.h"

#include <fmt/format.h>

#include <bit>
#include <deque>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "codegen/error.h"
#include "runtime/driver/nvrtc_library.h"

namespace lazyrope {
namespace {

CUstream cuda_stream(Stream stream) { return static_cast<CUstream>(stream); }
CUdeviceptr cuda_address(const void* memory) { return reinterpret_cast<CUdeviceptr>(memory); }

constexpr int kTensorMapComputeMajor = 9;
constexpr int kDependentLaunchComputeMajor = 9;

CUtensorMapDataType cuda_type(ElementType type) {
  switch (type) {
    case ElementType::kBf16:
      return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case ElementType::kFp16:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    case ElementType::kFp32:
      return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
    case ElementType::kInt32:
      return CU_TENSOR_MAP_DATA_TYPE_INT32;
    default:  // the other valid types have 8 bits
      return CU_TENSOR_MAP_DATA_TYPE_UINT8;
  }
}

CUtensorMapSwizzle cuda_swizzle(Swizzle swizzle) {
  static_assert(static_cast<int>(Swizzle::k32B) == CU_TENSOR_MAP_SWIZZLE_32B &&
                static_cast<int>(Swizzle::k64B) == CU_TENSOR_MAP_SWIZZLE_64B &&
                static_cast<int>(Swizzle::k128B) == CU_TENSOR_MAP_SWIZZLE_128B);
  return static_cast<CUtensorMapSwizzle>(swizzle);
}

CUtensorMapL2promotion cuda_promotion(L2Promotion promotion) {
  static_assert(static_cast<int>(L2Promotion::k64B) == CU_TENSOR_MAP_L2_PROMOTION_L2_64B &&
                static_cast<int>(L2Promotion::k128B) == CU_TENSOR_MAP_L2_PROMOTION_L2_128B &&
                static_cast<int>(L2Promotion::k256B) == CU_TENSOR_MAP_L2_PROMOTION_L2_256B);
  return static_cast<CUtensorMapL2promotion>(promotion);
}

// Returns the error, with the advice to a driver that is too old for the binary's NVRTC if it is.
DriverError with_conflict(DriverFailure failure, const Driver& driver, const Binary& binary) {
  const std::optional<NvrtcVersion> nvrtc = nvrtc_version_of(binary.compiler);
  if (refuses_code(failure) && nvrtc) {
    const std::string conflict = driver_conflict(*nvrtc, driver.version());
    if (!conflict.empty()) failure.advice = conflict;
  }
  return DriverError(std::move(failure));
}

class GpuKernel : public LoadedKernel {
 public:
  GpuKernel(const Driver& driver, const DeviceInfo& device, const Binary& binary)
      : driver_(driver),
        device_(device),
        library_(load_library(driver, binary)),
        threads_(static_cast<unsigned>(binary.threads)),
        shared_bytes_(static_cast<unsigned>(binary.shared_bytes)),
        uses_dependent_launch_(device.compute_major >= kDependentLaunchComputeMajor) {
    const RelaxedCaptureScope allowed(driver);
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
    const RelaxedCaptureScope allowed(driver_);
    driver_.unload_library(library_);
  }

  void launch(int ctas, const void* params, Stream stream, AccessedMemoryFn) const override {
    const ScopedContext context(driver_, device_);
    void* arguments[] = {const_cast<void*>(params)};
    CUlaunchAttribute dependent_launch{};
    dependent_launch.id = CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    dependent_launch.value.programmaticStreamSerializationAllowed = 1;
    CUlaunchConfig config{};
    config.gridDimX = static_cast<unsigned>(ctas);
    config.blockDimX = threads_;
    config.gridDimY = config.gridDimZ = config.blockDimY = config.blockDimZ = 1;
    config.sharedMemBytes = shared_bytes_;
    config.hStream = cuda_stream(stream);
    config.attrs = &dependent_launch;
    config.numAttrs = uses_dependent_launch_ ? 1 : 0;
    driver_.launch_kernel(config, kernel_, arguments);
  }

 private:
  static CUlibrary load_library(const Driver& driver, const Binary& binary) {
    const RelaxedCaptureScope allowed(driver);
    try {
      return driver.load_library(binary.code.data());
    } catch (const DriverError& error) {
      throw with_conflict(error.failure(), driver, binary);
    }
  }

  const Driver& driver_;
  const DeviceInfo& device_;
  CUlibrary library_;
  CUfunction kernel_ = nullptr;
  unsigned threads_;
  unsigned shared_bytes_;
  // True if the kernel may start before the previous kernel of its stream has ended. Every kernel
  // begins with griddepcontrol_wait(), so this is safe.
  bool uses_dependent_launch_;
};

class GpuEvent {
 public:
  explicit GpuEvent(const Driver& driver, unsigned flags = CU_EVENT_DEFAULT)
      : driver_(driver), event_(driver.create_event(flags)) {}
  GpuEvent(const GpuEvent&) = delete;
  GpuEvent& operator=(const GpuEvent&) = delete;
  ~GpuEvent() { driver_.destroy_event(event_); }

  void record(Stream stream) const { driver_.record_event(event_, cuda_stream(stream)); }
  void wait() const { driver_.synchronize_event(event_); }
  double microseconds_since(const GpuEvent& begin) const {
    return 1e3 * static_cast<double>(driver_.elapsed_ms(begin.event_, event_));
  }

 private:
  const Driver& driver_;
  CUevent event_;
};

class ScopedStream {
 public:
  explicit ScopedStream(const Driver& driver) : driver_(driver), stream_(driver.create_stream()) {}
  ScopedStream(const ScopedStream&) = delete;
  ScopedStream& operator=(const ScopedStream&) = delete;
  ~ScopedStream() { driver_.destroy_stream(stream_); }

  CUstream get() const { return stream_; }

 private:
  const Driver& driver_;
  CUstream stream_;
};

class GpuStopwatch : public Stopwatch {
 public:
  GpuStopwatch(const Driver& driver, const DeviceInfo& device) : driver_(driver), device_(device) {}

  std::vector<double> time(std::span<const std::function<void()>> calls, Stream stream) override {
    const ScopedContext context(driver_, device_);
    std::deque<GpuEvent> events;  // two per call; a deque, because events cannot move
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

class PinnedMemory {
 public:
  PinnedMemory(const Driver& driver, std::size_t bytes)
      : driver_(driver), memory_(driver.allocate_host(bytes)) {}
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory() { driver_.free_host(memory_); }

  std::byte* data() const { return static_cast<std::byte*>(memory_); }

 private:
  const Driver& driver_;
  void* memory_;
};

// Two pinned buffers that alternate, each with an event that says when its copy has ended.
class GpuStaging : public StagingBuffer {
 public:
  GpuStaging(const Driver& driver, const DeviceInfo& device, std::size_t bytes)
      : driver_(driver), device_(device) {
    while (buffers_.size() < kBuffers) buffers_.emplace_back(driver, bytes);
  }
  GpuStaging(const GpuStaging&) = delete;
  GpuStaging& operator=(const GpuStaging&) = delete;
  ~GpuStaging() override {
    try {
      const ScopedContext context(driver_, device_);
      const RelaxedCaptureScope allowed(driver_);
      for (const Buffer& buffer : buffers_) buffer.copied.wait();
      buffers_.clear();
    } catch (...) {  // NOLINT(bugprone-empty-catch): the process is ending, and the driver with it
    }
  }

  std::byte* acquire() override {
    const ScopedContext context(driver_, device_);
    const RelaxedCaptureScope allowed(driver_);
    const Buffer& buffer = buffers_[next_];
    buffer.copied.wait();
    return buffer.memory.data();
  }

  void copy_to(void* to, std::size_t bytes, Stream stream) override {
    const ScopedContext context(driver_, device_);
    const Buffer& buffer = buffers_[next_];
    driver_.copy_from_host_async(cuda_address(to), buffer.memory.data(), bytes,
                                 cuda_stream(stream));
    buffer.copied.record(stream);
    next_ = (next_ + 1) % kBuffers;
  }

 private:
  static constexpr std::size_t kBuffers = 2;

  struct Buffer {
    Buffer(const Driver& driver, std::size_t bytes)
        : memory(driver, bytes), copied(driver, CU_EVENT_DISABLE_TIMING) {}
    PinnedMemory memory;
    GpuEvent copied;
  };

  const Driver& driver_;
  const DeviceInfo& device_;
  std::deque<Buffer> buffers_;  // a deque, because buffers cannot be moved
  std::size_t next_ = 0;
};

struct GpuDevices {
  std::mutex mutex;
  std::map<int, std::shared_ptr<const Device>> by_ordinal;
};

// It is never destroyed, because other objects' destructors may use a device at exit.
PerProcess<GpuDevices>& gpu_devices() {
  static auto& devices = *new PerProcess<GpuDevices>;
  return devices;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_gpu_devices() { (void)gpu_devices(); }

}  // namespace

GpuDevice::GpuDevice(const Driver& driver, const DeviceInfo& info)
    : driver_(driver),
      info_(info),
      arch_(arch_for_device(info.compute_major, info.compute_minor)),
      kept_context_([this] {
        driver_.retain_primary_context(info_.handle);
        return std::make_unique<KeptContext>();
      }) {}

std::unique_ptr<LoadedKernel> GpuDevice::load(const Binary& binary) const {
  return std::make_unique<GpuKernel>(driver_, info_, binary);
}

std::size_t GpuDevice::free_bytes() const {
  const ScopedContext context(driver_, info_);
  return driver_.free_bytes();
}

void* GpuDevice::allocate(std::size_t bytes) const {
  const ScopedContext context(driver_, info_);
  const RelaxedCaptureScope allowed(driver_);
  keep_primary_context(context);
  return reinterpret_cast<void*>(driver_.allocate(bytes));
}

void GpuDevice::keep_primary_context(const ScopedContext& context) const {
  if (context.retains_primary_context()) kept_context_.get();
}

std::unique_ptr<StagingBuffer> GpuDevice::staging(std::size_t bytes) const {
  const ScopedContext context(driver_, info_);
  const RelaxedCaptureScope allowed(driver_);
  keep_primary_context(context);
  return std::make_unique<GpuStaging>(driver_, info_, bytes);
}

void GpuDevice::free(void* memory) const noexcept {
  try {
    const ScopedContext context(driver_, info_);
    const RelaxedCaptureScope allowed(driver_);
    driver_.free(cuda_address(memory));
  } catch (...) {  // NOLINT(bugprone-empty-catch): the process is ending, and the driver with it
  }
}

void GpuDevice::fill_zero(void* memory, std::size_t bytes, Stream stream) const {
  const ScopedContext context(driver_, info_);
  if (driver_.is_capturing(cuda_stream(stream))) return fill_zero_now(memory, bytes);
  driver_.fill8_async(cuda_address(memory), 0, bytes, cuda_stream(stream));
}

// A fill that is queued on a stream under capture would run at each replay of the graph, and not
// now.
void GpuDevice::fill_zero_now(void* memory, std::size_t bytes) const {
  const RelaxedCaptureScope allowed(driver_);
  const ScopedStream own(driver_);
  driver_.fill8_async(cuda_address(memory), 0, bytes, own.get());
  driver_.synchronize_stream(own.get());
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

TensorMap GpuDevice::encode(const TensorMapSpec& spec) const {
  validate(spec);
  if (info_.compute_major < kTensorMapComputeMajor)
    throw SpecError(
        fmt::format("tensor map: {} is a GPU of compute capability {}.{}; tensor maps need {}.0 or "
                    "higher",
                    info_.name, info_.compute_major, info_.compute_minor, kTensorMapComputeMajor));
  const std::vector<cuuint64_t> dims(spec.dims.begin(), spec.dims.end());
  const std::vector<cuuint64_t> strides(spec.strides.begin(), spec.strides.end());
  const std::vector<cuuint32_t> box(spec.box.begin(), spec.box.end());
  const ScopedContext context(driver_, info_);
  return std::bit_cast<TensorMap>(driver_.encode_tensor_map(
      cuda_type(spec.type), static_cast<cuuint32_t>(dims.size()), spec.data, dims.data(),
      strides.data(), box.data(), cuda_swizzle(spec.swizzle), cuda_promotion(spec.l2_promotion)));
}

std::unique_ptr<Stopwatch> GpuDevice::stopwatch() const {
  return std::make_unique<GpuStopwatch>(driver_, info_);
}

bool GpuDevice::is_capturing(Stream stream) const {
  const ScopedContext context(driver_, info_);
  return driver_.is_capturing(cuda_stream(stream));
}

std::shared_ptr<const Device> gpu_device(int ordinal) {
  GpuDevices& devices = gpu_devices().get();
  const std::lock_guard lock(devices.mutex);
  std::shared_ptr<const Device>& device = devices.by_ordinal[ordinal];
  if (device == nullptr)
    device = std::make_shared<GpuDevice>(Driver::get(), Devices::get().info(ordinal));
  return device;
}

}  // namespace lazyrope
