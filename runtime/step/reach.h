#pragma once

#include <optional>
#include <vector>

#include "runtime/driver/device.h"
#include "runtime/step/step_types.h"

namespace lazyrope {

// Returns the bytes from the tensor's lowest through its highest; `name` appears in the emulator's
// errors.
MemoryRange range_of(const char* name, const TensorView& tensor, bool is_written);

// Collects the memory that a launch may access, for the emulator. A tensor that is absent adds
// nothing.
class Reach {
 public:
  Reach& reads(const char* name, const std::optional<TensorView>& tensor);
  Reach& writes(const char* name, const std::optional<TensorView>& tensor);
  Reach& writes(const char* name, const DeviceBuffer& buffer);
  Reach& pool(const PoolTensors& pool, bool is_written);

  std::vector<MemoryRange> ranges() const { return ranges_; }

 private:
  Reach& add(const char* name, const TensorView& tensor, bool is_written);

  std::vector<MemoryRange> ranges_;
};

}  // namespace lazyrope
