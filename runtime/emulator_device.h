#pragma once

#include <string>

#include "runtime/compiler.h"
#include "runtime/device.h"

namespace lazyrope {

// Compiles a kernel's text for the host with the C++ compiler found there.
class HostCompiler : public Compiler {
 public:
  explicit HostCompiler(std::string command) : command_(std::move(command)) {}

  std::vector<std::string> options(const Arch& arch) const override;
  Binary compile(const RenderedKernel& kernel, const Arch& arch) override;
  std::string intermediate(const RenderedKernel& kernel, const Arch& arch) override;

 private:
  std::string command_;
};

// The emulator as a device: its memory is the host's, its streams have always finished.
class EmulatorDevice : public Device {
 public:
  explicit EmulatorDevice(const Arch& arch) : arch_(arch) {}

  std::string name() const override { return "emulator"; }
  const Arch& arch() const override { return arch_; }
  // Few, so that little work is divided as much would be on a GPU.
  int sm_count() const override { return 4; }
  bool holds(DeviceType type, int) const override { return type == DeviceType::kCpu; }

  std::unique_ptr<LoadedKernel> load(const Binary& binary) const override;

  void* allocate(std::size_t bytes) const override;
  void free(void* memory) const noexcept override;
  void fill_zero(void* memory, std::size_t bytes, Stream stream) const override;
  void copy_to_host(void* to, const void* from, std::size_t bytes, Stream stream) const override;
  bool is_capturing(Stream) const override { return false; }

 private:
  const Arch& arch_;
};

}  // namespace lazyrope
