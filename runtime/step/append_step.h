#pragma once

#include <map>
#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/driver/device.h"
#include "runtime/engine/kernel.h"
#include "runtime/step/step.h"
#include "templates/abi/append.h"

namespace lazyrope {

// The slots of all tokens that one pass of a model appends, the same for every layer. As a Step: a
// fixed capacity, filled anew on a stream, used by captured graphs.
class AppendStep {
 public:
  // SpecError where the capacity (0 is legal) or the page size is not.
  AppendStep(std::shared_ptr<const Device> device, std::shared_ptr<const Kernel> planner,
             PoolFormat format, AppendCapacity capacity);

  // SpecError where the tensors do not fit, or, with `check`, where a value is illegal.
  void update(const AppendTensors& tensors, bool check, Stream stream);

  // As Step::check_pages; the message calls the step by `name`.
  void check_pages(std::int64_t num_pages, Stream stream, std::string_view name = "step") const;
  // Before num_rows rows are appended: that, and that they are all that the step has a slot for, no
  // two of them the same.
  void check_writes(std::int64_t num_rows, std::int64_t num_pages, Stream stream) const;
  // Where the rows go, `capacity` of them. Waits for the stream; refused in capture.
  std::vector<AppendRecord> host_records(Stream stream) const;

  const std::shared_ptr<const Device>& device() const { return device_; }
  const PoolFormat& format() const { return format_; }
  int capacity() const { return params_.capacity; }
  const std::optional<int>& max_spans() const { return max_spans_; }
  // Whether there has been an update, without which append() has nowhere to write.
  bool is_filled() const { return is_filled_; }
  const AppendRecord* records() const { return params_.records; }
  const DeviceBuffer& memory() const { return *memory_; }

 private:
  std::shared_ptr<const Device> device_;
  std::shared_ptr<const Kernel> planner_;
  PoolFormat format_;
  std::optional<int> max_spans_;
  PlanAppendParams params_{};
  bool is_filled_ = false;
  std::unique_ptr<DeviceBuffer> memory_;
};

// The row that writes each page and slot; SpecError where two write the same. The message calls the
// step by `name`.
std::map<std::pair<int, int>, std::size_t> writers_of(const std::vector<AppendRecord>& records,
                                                      std::string_view name);

}  // namespace lazyrope
