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

// A range of memory that a launch may access.
struct MemoryRange {
  std::string name;
  const void* begin;
  std::size_t bytes;
  bool is_written;
};

// Returns every range of memory that a launch may access, except its parameters. Only a device that
// checks accesses (the emulator) calls the function.
using AccessedMemoryFn = FunctionRef<std::vector<MemoryRange>()>;

// A kernel that is loaded on one device. Safe to launch from several threads.
class LoadedKernel {
 public:
  virtual ~LoadedKernel() = default;

  // Launches `ctas` CTAs with the kernel's parameter struct, asynchronously. Throws DriverError.
  virtual void launch(int ctas, const void* params, Stream stream,
                      AccessedMemoryFn accessed_memory) const = 0;
};

// Measures the time that work takes on a device.
class Stopwatch {
 public:
  virtual ~Stopwatch() = default;

  // Returns the microseconds that the work of each call takes on the device. It queues all calls on
  // the stream before it waits, so host time does not count while the device has work. Throws
  // DriverError.
  virtual std::vector<double> time(std::span<const std::function<void()>> calls, Stream stream) = 0;
};

// Identifies the device that holds a tensor.
struct DeviceId {
  DeviceType type;
  int ordinal;
};

// A device that runs kernels and holds tensors: a GPU, or the emulator. Calls that take a stream
// are ordered with the work on it. Failures of the driver are thrown as DriverError. Safe to use
// from several threads.
class Device {
 public:
  virtual ~Device() = default;

  virtual std::string name() const = 0;
  virtual const Arch& arch() const = 0;
  virtual int sm_count() const = 0;
  virtual int l2_bytes() const = 0;
  // Returns the name and version of the software that runs kernels.
  virtual std::string driver() const = 0;
  virtual DeviceId id() const = 0;
  // Returns true if kernels of this device can use tensors of that device. Host memory has no
  // ordinals.
  bool holds(DeviceType type, int ordinal) const {
    return type == id().type && (type == DeviceType::kCpu || ordinal == id().ordinal);
  }

  // Loads a compiled kernel. The device must outlive it.
  virtual std::unique_ptr<LoadedKernel> load(const Binary& binary) const = 0;

  virtual std::size_t free_bytes() const = 0;
  // Returns device memory, which free() takes back.
  virtual void* allocate(std::size_t bytes) const = 0;
  virtual void free(void* memory) const noexcept = 0;
  // Fills memory with zeros. If the stream is being captured, the fill runs at once and is not part
  // of the graph.
  virtual void fill_zero(void* memory, std::size_t bytes, Stream stream) const = 0;
  // Both copies wait until they are complete.
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) const = 0;
  virtual void copy_from_host(void* to, const void* from, std::size_t bytes,
                              Stream stream) const = 0;
  // Returns host memory from which copies to the device are asynchronous.
  virtual std::unique_ptr<StagingBuffer> staging(std::size_t bytes) const = 0;
  // Returns the tensor map with which kernels copy boxes of a tensor. Throws SpecError if the
  // device has no tensor map for `spec`.
  virtual TensorMap encode(const TensorMapSpec& spec) const = 0;
  virtual std::unique_ptr<Stopwatch> stopwatch() const = 0;
  virtual bool is_capturing(Stream stream) const = 0;
};

// Memory of a device, freed by the destructor. The constructor throws DriverError.
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
