#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/tensor.h"
#include "runtime/driver/device.h"

namespace lazyrope {

// The device that a tensor lies on: its GPU, or for tensors of the host the emulator. SpecError
// where kernels cannot run, naming the argument.
std::shared_ptr<const Device> device_of(std::string_view name, const TensorView& tensor);

// The names of the architectures that this build compiles for: all, but the emulator only where it
// is built.
std::vector<std::string> compilable_archs();

// The GPU whose context is current, or else GPU 0. DriverError without one.
std::shared_ptr<const Device> present_gpu();

// The architecture of the GPU whose context is current, or else of GPU 0. DriverError without one.
const Arch& present_arch();

}  // namespace lazyrope
