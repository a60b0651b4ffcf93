#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "codegen/arch.h"
#include "codegen/render.h"
#include "runtime/base/function_ref.h"
#include "runtime/driver/binary.h"
#include "runtime/driver/staging.h"
#include "runtime/driver/tensor_map.h"

namespace lazyrope {

// Memory that a launch may reach.
struct MemoryRange {
  std::string name;
  const void* begin;
  std::size_t bytes;
  bool is_written;
};

// All that a launch may reach beside its parameters. Asked only by devices that check it.
using ReachOf = FunctionRef<std::vector<MemoryRange>()>;

// A kernel that can be launched on one device.
class LoadedKernel {
 public:
  virtual ~LoadedKernel() = default;

  // Launches `ctas` CTAs with the kernel's parameter struct. Asynchronous. DriverError.
  virtual void launch(int ctas, const void* params, Stream stream, ReachOf reach) const = 0;
};

// Measures how long work takes on a device.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;

  // Microseconds that the work of each call takes. All of it is queued on the stream before any is
  // waited for, so the host's time does not count while the device is behind. DriverError.
  virtual std::vector<double> time(std::span<const std::function<void()>> calls, Stream stream) = 0;
};

// Where a device's tensors lie.
struct DeviceId {
  DeviceType type;
  int ordinal;
};

// Where kernels run and tensors lie: a GPU, or the emulator. All calls that take a stream are
// ordered with the work on it. Errors of the driver are DriverError.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;
  virtual const Arch& arch() const = 0;
  virtual int sm_count() const = 0;
  virtual int l2_bytes() const = 0;
  // What runs its kernels, and in which version.
  virtual std::string driver() const = 0;
  virtual DeviceId id() const = 0;
  // Whether its kernels can use tensors that lie there. The host's memory has no ordinals.
  bool holds(DeviceType type, int ordinal) const {
    return type == id().type && (type == DeviceType::kCpu || ordinal == id().ordinal);
  }

  virtual std::unique_ptr<LoadedKernel> load(const Binary& binary) const = 0;

  virtual std::size_t free_bytes() const = 0;
  virtual void* allocate(std::size_t bytes) const = 0;
  virtual void free(void* memory) const noexcept = 0;
  // In a stream under capture at once, not by the graph.
  virtual void fill_zero(void* memory, std::size_t bytes, Stream stream) const = 0;
  // Both wait for the stream.
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) const = 0;
  virtual void copy_from_host(void* to, const void* from, std::size_t bytes,
                              Stream stream) const = 0;
  // Memory of the host for copies that the host does not wait for.
  virtual std::unique_ptr<StagingBuffer> staging(std::size_t bytes) const = 0;
  // For kernels that copy boxes of a tensor. SpecError on what this device has no tensor map for.
  virtual TensorMap encode(const TensorMapSpec& spec) const = 0;
  virtual std::unique_ptr<Stopwatch> stopwatch() const = 0;
  virtual bool is_capturing(Stream stream) const = 0;
};

// Memory of a device, freed with this object.
class DeviceBuffer {
 public:
  DeviceBuffer(std::shared_ptr<const Device> device, std::size_t bytes)
      : device_(std::move(device)), bytes_(bytes), data_(device_->allocate(bytes)) {}
  DeviceBuffer(const DeviceBuffer&) = delete;
  DeviceBuffer& operator=(const DeviceBuffer&) = delete;
  ~DeviceBuffer() { device_->free(data_); }

  const Device& device() const { return *device_; }
  void* data() const { return data_; }
  std::size_t bytes() const { return bytes_; }

 private:
  std::shared_ptr<const Device> device_;
  std::size_t bytes_;
  void* data_;
};

}  // namespace lazyrope
