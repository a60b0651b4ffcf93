#pragma once

#include <cstring>
#include <functional>
#include <memory>
#include <new>

#include "runtime/device.h"
#include "runtime/kernel.h"

namespace lazyrope {

// A device in host memory whose kernels do what a test says.
class FakeDevice : public Device {
 public:
  explicit FakeDevice(const char* arch = "sm_90a") : arch_(find_arch(arch)) {}

  std::string name() const override { return "fake GPU"; }
  const Arch& arch() const override { return arch_; }
  int sm_count() const override { return sms; }
  bool holds(DeviceType type, int) const override { return type == DeviceType::kCpu; }

  std::unique_ptr<LoadedKernel> load(const Binary&) const override {
    ++loads;
    return std::make_unique<FakeKernel>(*this);
  }

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
  bool is_capturing(Stream) const override { return capturing; }

  int sms = 4;
  bool capturing = false;
  mutable int loads = 0;
  std::function<void(int ctas, const void* params)> on_launch = [](int, const void*) {};

 private:
  class FakeKernel : public LoadedKernel {
   public:
    explicit FakeKernel(const FakeDevice& device) : device_(device) {}
    void launch(int ctas, const void* params, Stream) const override {
      device_.on_launch(ctas, params);
    }

   private:
    const FakeDevice& device_;
  };

  const Arch& arch_;
};

// A kernel whose binary is of no use but to a FakeDevice.
inline std::shared_ptr<const Kernel> fake_kernel(KernelKind kind, int threads = 256) {
  const RenderedKernel rendered = {kind, "source", "entry", threads, 1, 0};
  Binary binary;
  binary.threads = threads;
  return std::make_shared<Kernel>(rendered, find_arch("sm_90a"), binary, Kernel::Origin{}, nullptr);
}

}  // namespace lazyrope
