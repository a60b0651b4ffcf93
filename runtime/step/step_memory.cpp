#include "runtime/step/step_memory.h"

#include <utility>

#include "codegen/error.h"
#include "runtime/base/error.h"
#include "runtime/emulator/fault.h"

namespace lazyrope {

StepMemory::StepMemory(std::shared_ptr<const Device> device, std::size_t bytes, Stream stream)
    : buffer_(std::move(device), bytes) {
  buffer_.device().fill_zero(buffer_.data(), buffer_.bytes(), stream);
}

void StepMemory::check_usable() const {
  if (is_broken_)
    throw SpecError("the step is broken, because a kernel ended early; update() refills it");
}

void StepMemory::run(FunctionRef<void()> launches) {
  check_usable();
  try {
    launches();
  } catch (const KernelFault&) {
    is_broken_ = true;
    throw;
  } catch (const SpecError&) {
    throw;
  } catch (const DriverError&) {
    throw;
  } catch (...) {
    is_broken_ = true;
    throw;
  }
}

void StepMemory::clear_if_broken(Stream stream) {
  if (!is_broken_) return;
  buffer_.device().fill_zero(buffer_.data(), buffer_.bytes(), stream);
  is_broken_ = false;
}

}  // namespace lazyrope
