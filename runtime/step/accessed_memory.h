#pragma once

#include <optional>
#include <vector>

#include "runtime/driver/device.h"
#include "runtime/step/step_types.h"

namespace lazyrope {

// Returns the memory from the tensor's lowest to its highest byte, both included. The emulator's
// errors call the range `name`.
MemoryRange range_of(const char* name, const TensorView& tensor, bool is_written);

// Lists the memory that a launch may access. The emulator checks every access of the kernel against
// the list. An absent tensor adds no range.
class AccessedMemory {
 public:
  AccessedMemory& reads(const char* name, const std::optional<TensorView>& tensor);
  AccessedMemory& writes(const char* name, const std::optional<TensorView>& tensor);
  AccessedMemory& writes(const char* name, const DeviceBuffer& buffer);
  AccessedMemory& reads_pool(const PoolTensors& pool) { return add_pool(pool, false); }
  AccessedMemory& writes_pool(const PoolTensors& pool) { return add_pool(pool, true); }

  std::vector<MemoryRange> ranges() const { return ranges_; }

 private:
  AccessedMemory& add(const char* name, const TensorView& tensor, bool is_written);
  AccessedMemory& add_pool(const PoolTensors& pool, bool is_written);

  std::vector<MemoryRange> ranges_;
};

}  // namespace lazyrope
