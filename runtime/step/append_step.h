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

// The slots of all tokens that one pass of a model appends; all layers share them. Like a Step, it
// has a fixed capacity and update() refills it on a stream, so that captured graphs can replay with
// it. An append step serves one stream at a time; it is not thread-safe.
class AppendStep {
 public:
  // Throws SpecError if the capacity is negative or the page size is illegal. 0 is a legal
  // capacity.
  AppendStep(std::shared_ptr<const Device> device, std::shared_ptr<const Kernel> planner,
             PoolFormat format, AppendCapacity capacity);

  // Refills the step on the stream. Throws SpecError if the tensors do not fit and, with `check`,
  // if a value is illegal. `check` waits for the stream and is refused in capture.
  void update(const AppendTensors& tensors, bool check, Stream stream);
  void update(const TokenSlots& slots, bool check, Stream stream);

  // Waits for the stream. Throws SpecError if a row is on a page that the pool of `num_pages` pages
  // does not have. The message calls the step `name`.
  void check_pages(std::int64_t num_pages, Stream stream, std::string_view name = "step") const;
  // Checks the step before num_rows rows are appended. Throws SpecError as check_pages() does, if
  // the step has a slot for a row beyond them, or if a slot is written twice. Waits for the stream.
  void check_writes(std::int64_t num_rows, std::int64_t num_pages, Stream stream) const;
  // Returns the `capacity` records, each with the page and slot of a row. Waits for the stream;
  // refused in capture.
  std::vector<AppendRecord> host_records(Stream stream) const;

  const std::shared_ptr<const Device>& device() const { return device_; }
  const PoolFormat& format() const { return format_; }
  int capacity() const { return params_.capacity; }
  const std::optional<int>& max_spans() const { return max_spans_; }
  // Returns true if the latest update launched the planner. Otherwise append() has no slots to
  // write to.
  bool is_filled() const { return is_filled_; }
  const AppendRecord* records() const { return params_.records; }
  const DeviceBuffer& memory() const { return *memory_; }

 private:
  // Launches the planner, which may access the memory that accessed_memory() returns.
  void plan(Stream stream, AccessedMemoryFn accessed_memory);

  std::shared_ptr<const Device> device_;
  std::shared_ptr<const Kernel> planner_;
  PoolFormat format_;
  std::optional<int> max_spans_;
  PlanAppendParams params_{};
  bool is_filled_ = false;
  std::unique_ptr<DeviceBuffer> memory_;
};

// Returns the row that writes each (page, slot). Throws SpecError if two rows write the same slot.
// The message calls the step `name`.
std::map<std::pair<int, int>, std::size_t> writers_of(const std::vector<AppendRecord>& records,
                                                      std::string_view name);

}  // namespace lazyrope
