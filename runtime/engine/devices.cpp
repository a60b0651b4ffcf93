#include "runtime/engine/devices.h"

#include <fmt/format.h>

#include "codegen/error.h"
#include "runtime/driver/context.h"
#include "runtime/driver/gpu_device.h"
#include "runtime/emulator/device.h"

namespace lazyrope {
namespace {

const DeviceInfo& current_info() {
  const Devices& devices = Devices::get();
  const bool has_context = Driver::get().current_context() != nullptr;
  return has_context ? devices.current() : devices.info(0);
}

}  // namespace

std::shared_ptr<const Device> device_of(std::string_view name, const TensorView& tensor) {
  switch (tensor.device_type) {
    case DeviceType::kGpu:
      return gpu_device(tensor.device);
    case DeviceType::kCpu:
      return emulator_device();
    case DeviceType::kOther:
      break;
  }
  throw SpecError(fmt::format("{} is {}; it must be on a GPU, or in host memory for the emulator",
                              name, describe(tensor)));
}

std::shared_ptr<const Device> current_gpu() { return gpu_device(current_info().ordinal); }

const Arch& current_arch() {
  const DeviceInfo& device = current_info();
  return arch_for_device(device.compute_major, device.compute_minor);
}

std::vector<std::string> compilable_archs() {
  std::vector<std::string> names;
  for (const Arch& arch : archs())
    if (arch.isa != "emu" || has_emulator()) names.push_back(arch.name);
  return names;
}

}  // namespace lazyrope
