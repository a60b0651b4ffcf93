#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/driver/device.h"
#include "runtime/emulator/fault.h"
#include "runtime/engine/kernel.h"
#include "runtime/step/reach.h"
#include "runtime/step/step_types.h"
#include "templates/abi/plan.h"

namespace lazyrope {

// What of an attention its steps depend on.
struct StepShape {
  int group_size;
  int num_kv_heads;
  int head_dim;
  int kv_bytes;  // of an element of the pool
  std::string mask;
  MaskParameters mask_parameters = {};

  bool operator==(const StepShape&) const = default;
};

// Adds what the planner reads of the caller's arrays, but for the page lists.
void add_inputs(const StepTensors& tensors, Reach& reach);

// SpecError where the page size is illegal.
void check_format(const PoolFormat& format);

// Device memory that a step takes on a GPU of so many SMs. SpecError as Step's.
std::size_t step_bytes(const StepShape& shape, const KernelConfig& config, StepCapacity capacity,
                       int sm_count);

// The requests that one pass of a model serves: what attention needs to know of them, in device
// memory of a fixed capacity. Filled anew by update() on a stream, with no synchronisation, so that
// a captured graph of calls replays with other requests. A step serves one stream at a time.
class Step {
 public:
  // SpecError where the capacity is illegal.
  Step(std::shared_ptr<const Device> device, std::shared_ptr<const Kernel> planner, StepShape shape,
       const KernelConfig& config, PoolFormat format, StepCapacity capacity, Stream stream);

  // SpecError where the tensors do not fit. `check` waits for the stream and also checks the
  // values; it is refused while the stream is captured.
  void update(const StepTensors& tensors, bool check, Stream stream);

  // Waits for the stream, and checks that every page that the step's segments refer to is one of
  // num_pages. SpecError that names request, segment and page.
  void check_pages(std::int64_t num_pages, Stream stream) const;

  const std::shared_ptr<const Device>& device() const { return device_; }
  const StepCapacity& capacity() const { return capacity_; }
  const PoolFormat& format() const { return format_; }
  // What the step is planned for; only kernels of this shape and config can use it.
  const StepShape& shape() const { return shape_; }
  const KernelConfig& config() const { return config_; }
  // Query tokens of the latest update.
  int num_tokens() const { return num_tokens_; }
  // Device memory that the step takes.
  std::size_t bytes() const { return memory_->bytes(); }

  enum Phase { kDecode, kPrefill };
  // Whether there can be requests for that attend kernel.
  bool serves(Phase phase) const { return params_.phase[phase].work.num_ctas > 0; }
  const StepView& view() const { return params_.step; }
  // What kernels that use the step may reach of it.
  void add_to(Reach& reach) const;
  const WorkView& work(Phase phase) const { return params_.phase[phase].work; }
  // Launches kernels that write to the step. What one leaves that is at fault, as the emulator may
  // say, is of no use until the next update: SpecError until then. Whatever else is thrown comes
  // before a kernel has begun.
  template <class Launches>
  void run(const Launches& launches) const {
    check_whole();
    try {
      launches();
    } catch (const KernelFault&) {
      is_broken_ = true;
      throw;
    }
  }

 private:
  void check_whole() const;
  void check_shapes(const StepTensors& tensors) const;

  std::shared_ptr<const Device> device_;
  std::shared_ptr<const Kernel> planner_;
  StepShape shape_;
  KernelConfig config_;
  PoolFormat format_;
  StepCapacity capacity_;
  int num_tokens_ = 0;
  std::optional<StepTensors> tensors_;  // of the latest update, for check_pages
  PlanParams params_{};
  std::unique_ptr<DeviceBuffer> memory_;
  mutable bool is_broken_ = false;
};

}  // namespace lazyrope
