#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <new>

#include "runtime/driver/device.h"
#include "runtime/engine/kernel.h"

namespace lazyrope {

// A device in host memory. Its kernels call functions that a test provides.
class FakeDevice : public Device {
 public:
  explicit FakeDevice(const char* arch = "sm_90a") : arch_(find_arch(arch)) {}

  std::string name() const override { return "fake GPU"; }
  const Arch& arch() const override { return arch_; }
  int sm_count() const override { return sms; }
  int l2_bytes() const override { return l2; }
  std::string driver() const override { return driver_name; }
  DeviceId id() const override { return {DeviceType::kCpu, index}; }

  std::unique_ptr<LoadedKernel> load(const Binary& binary) const override {
    on_load();
    ++loads;
    return std::make_unique<FakeKernel>(*this, binary);
  }
  std::size_t free_bytes() const override { return free_memory; }

  void* allocate(std::size_t bytes) const override {
    return ::operator new(bytes, std::align_val_t{256});
  }
  void free(void* memory) const noexcept override {
    ::operator delete(memory, std::align_val_t{256});
  }
  void fill_zero(void* memory, std::size_t bytes, Stream) const override {
    std::memset(memory, 0, bytes);
  }
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream) const override {
    std::memcpy(to, from, bytes);
  }
  void copy_from_host(void* to, const void* from, std::size_t bytes, Stream) const override {
    std::memcpy(to, from, bytes);
  }
  std::unique_ptr<StagingBuffer> staging(std::size_t bytes) const override {
    return std::make_unique<HostStaging>(bytes);
  }
  TensorMap encode(const TensorMapSpec& spec) const override { return emulated_tensor_map(spec); }
  std::unique_ptr<Stopwatch> stopwatch() const override {
    return std::make_unique<FakeStopwatch>(clock_us);
  }
  bool is_capturing(Stream) const override { return capturing; }

  int index = 0;
  int sms = 4;
  bool capturing = false;
  mutable int loads = 0;
  int l2 = 0;                                      // bytes
  std::size_t free_memory = std::size_t{1} << 30;  // bytes
  std::string driver_name = "fake driver";
  mutable double clock_us = 0;  // the stopwatch reads it; launches may advance it
  std::function<void()> on_load = [] {};
  std::function<void(int ctas, const void* params)> on_launch = [](int, const void*) {};
  // A launch calls on_kernel after on_launch. The binary tells tests which kernel was launched.
  std::function<void(const Binary& binary, int ctas, const void* params)> on_kernel =
      [](const Binary&, int, const void*) {};

 private:
  class FakeStopwatch : public Stopwatch {
   public:
    explicit FakeStopwatch(const double& clock_us) : clock_us_(clock_us) {}
    std::vector<double> time(std::span<const std::function<void()>> calls, Stream) override {
      std::vector<double> result;
      for (const std::function<void()>& call : calls) {
        const double begin = clock_us_;
        call();
        result.push_back(clock_us_ - begin);
      }
      return result;
    }

   private:
    const double& clock_us_;
  };

  class FakeKernel : public LoadedKernel {
   public:
    FakeKernel(const FakeDevice& device, Binary binary)
        : device_(device), binary_(std::move(binary)) {}
    void launch(int ctas, const void* params, Stream, AccessedMemoryFn) const override {
      device_.on_launch(ctas, params);
      device_.on_kernel(binary_, ctas, params);
    }

   private:
    const FakeDevice& device_;
    Binary binary_;
  };

  const Arch& arch_;
};

// Makes a kernel whose binary only a FakeDevice can load.
inline std::shared_ptr<const Kernel> fake_kernel(KernelKind kind, int threads = 256) {
  const RenderedKernel rendered = {kind, "source", "entry", threads, 1, 0};
  Binary binary;
  binary.threads = threads;
  return std::make_shared<Kernel>(rendered, find_arch("sm_90a"), binary, Kernel::Origin{}, nullptr);
}

}  // namespace lazyrope
