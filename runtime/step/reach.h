#pragma once

#include <optional>
#include <vector>

#include "runtime/driver/device.h"
#include "runtime/step/step_types.h"

namespace lazyrope {

// From the tensor's lowest byte through its highest.
MemoryRange range_of(const char* name, const TensorView& tensor, bool is_written);

// Collects what a launch may reach.
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
