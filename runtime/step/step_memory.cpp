#include "runtime/step/step_memory.h"

#include <utility>

#include "codegen/error.h"
#include "runtime/emulator/fault.h"

namespace lazyrope {

StepMemory::StepMemory(std::shared_ptr<const Device> device, std::size_t bytes, Stream stream)
    : buffer_(std::move(device), bytes) {
  buffer_.device().fill_zero(buffer_.data(), buffer_.bytes(), stream);
}

void StepMemory::run(FunctionRef<void()> launches) {
  if (has_faulted_)
    throw SpecError("the step is broken by a kernel that was at fault; update() refills it");
  try {
    launches();
  } catch (const KernelFault&) {
    has_faulted_ = true;
    throw;
  }
}

void StepMemory::clear_after_fault(Stream stream) {
  if (!has_faulted_) return;
  buffer_.device().fill_zero(buffer_.data(), buffer_.bytes(), stream);
  has_faulted_ = false;
}

}  // namespace lazyrope
