#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/base/tensor.h"
#include "runtime/driver/device.h"

namespace lazyrope {

// Returns the device of a tensor: its GPU, or the emulator for host memory. Throws SpecError, which
// names the argument, if kernels cannot run there.
std::shared_ptr<const Device> device_of(std::string_view name, const TensorView& tensor);

// Returns the names of the architectures that this build compiles for. The emulator's are among
// them only if it was built.
std::vector<std::string> compilable_archs();

// Returns the GPU whose context is current, or else GPU 0. Throws DriverError without one.
std::shared_ptr<const Device> current_gpu();

// Returns the architecture of current_gpu(). Throws DriverError without a GPU, SpecError for one
// that no kernels can be compiled for.
const Arch& current_arch();

}  // namespace lazyrope
