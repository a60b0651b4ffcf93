#pragma once

#include <memory>

#include "runtime/base/fork.h"
#include "runtime/driver/context.h"
#include "runtime/driver/device.h"

namespace lazyrope {

// A GPU, used through the CUDA driver. It works in the caller's context if that is one of this GPU,
// and otherwise in the GPU's primary context.
class GpuDevice : public Device {
 public:
  GpuDevice(const Driver& driver, const DeviceInfo& info);

  std::string name() const override { return info_.name; }
  const Arch& arch() const override { return arch_; }
  int sm_count() const override { return info_.sm_count; }
  int l2_bytes() const override { return info_.l2_bytes; }
  std::string driver() const override { return driver_.release(); }
  DeviceId id() const override { return {DeviceType::kGpu, info_.ordinal}; }

  std::unique_ptr<LoadedKernel> load(const Binary& binary) const override;

  std::size_t free_bytes() const override;
  void* allocate(std::size_t bytes) const override;
  void free(void* memory) const noexcept override;
  void fill_zero(void* memory, std::size_t bytes, Stream stream) const override;
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) const override;
  void copy_from_host(void* to, const void* from, std::size_t bytes, Stream stream) const override;
  std::unique_ptr<StagingBuffer> staging(std::size_t bytes) const override;
  TensorMap encode(const TensorMapSpec& spec) const override;
  std::unique_ptr<Stopwatch> stopwatch() const override;
  bool is_capturing(Stream stream) const override;

 private:
  void fill_zero_now(void* memory, std::size_t bytes) const;
  // Retains the primary context until the process ends, if `context` retains it. Otherwise it could
  // be destroyed with the scope, and all memory in it.
  void keep_primary_context(const ScopedContext& context) const;

  const Driver& driver_;
  const DeviceInfo& info_;
  const Arch& arch_;
  struct KeptContext {};
  mutable PerProcess<KeptContext> kept_context_;  // made by keep_primary_context()
};

// Returns the GPU of that ordinal; every call returns the same object. Throws DriverError without a
// driver or such a GPU, and SpecError for a GPU that no kernels can be compiled for.
std::shared_ptr<const Device> gpu_device(int ordinal);

}  // namespace lazyrope
