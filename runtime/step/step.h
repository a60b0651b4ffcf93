#pragma once

#include <memory>
#include <optional>
#include <string>

#include "runtime/driver/device.h"
#include "runtime/engine/kernel.h"
#include "runtime/step/accessed_memory.h"
#include "runtime/step/page_mass.h"
#include "runtime/step/rotation.h"
#include "runtime/step/step_memory.h"
#include "runtime/step/step_types.h"
#include "templates/abi/plan.h"
#include "templates/abi/share.h"

namespace lazyrope {

// The properties of an attention on which the schedule of its steps depends.
struct StepShape {
  int group_size;
  int num_kv_heads;
  int head_dim;
  int kv_bytes;  // bytes of an element of the pool
  std::string mask;
  MaskParameters mask_parameters = {};
  std::optional<KernelConfig> rotated = {};  // the config for rotated keys (codegen/rotated_keys.h)
  bool cascade = false;
  bool rotated_queries = false;  // on which the positions of a shared step depend
  bool page_mass = false;
  bool packed = false;  // rotated keys are packed
  bool states = false;

  bool operator==(const StepShape&) const = default;
};

// The parameters of a step's cascade (templates/abi/cascade.h).
struct CascadeParams {
  ShareParams share;
  PlanParams plan;  // the shared step's, which has one phase
  CascadeView view;
  uint32 slot_bytes;  // bytes of a slot
};

// The kernels that update() launches. Only a shape with a cascade has `share`, only one with
// `rotated` has plan_rotation, and only one with page_mass has plan_page_mass.
struct StepKernels {
  std::shared_ptr<const Kernel> plan;
  std::shared_ptr<const Kernel> share = {};
  std::shared_ptr<const Kernel> plan_rotation = {};
  std::shared_ptr<const Kernel> plan_page_mass = {};
};

// Adds the caller's arrays that the planner reads, which are all but the page lists.
void add_inputs(const StepTensors& tensors, AccessedMemory& accessed);

// Throws SpecError if the page size is illegal.
void check_format(const PoolFormat& format);

// Returns the device memory of a step in bytes, on a GPU with sm_count SMs. Throws SpecError as the
// constructor of Step does.
std::size_t step_bytes(const StepShape& shape, const KernelConfig& config, StepCapacity capacity,
                       int sm_count);

// The metadata and the schedule of one pass of a model, in device memory of a fixed capacity.
// update() refills it on a stream without synchronisation, so that a captured graph of calls
// replays with other requests. A step serves one stream at a time; it is not thread-safe.
class Step {
 public:
  // Throws SpecError if the capacity or the page size is illegal.
  Step(std::shared_ptr<const Device> device, StepKernels kernels, StepShape shape,
       const KernelConfig& config, PoolFormat format, StepCapacity capacity, Stream stream);

  // Makes update() refuse a mask_base. `why` is the error that it then throws.
  void refuse_mask_base(std::string why) { mask_base_refusal_ = std::move(why); }

  // Refills the step. Throws SpecError if the tensors do not fit. `check` waits for the stream and
  // also checks the values; it is refused while the stream is captured.
  void update(const StepTensors& tensors, bool check, Stream stream);

  // Waits for the stream. Throws SpecError, which names request, segment and page, if a segment
  // uses a page that the pool of `num_pages` pages does not have.
  void check_pages(std::int64_t num_pages, Stream stream) const;

  const std::shared_ptr<const Device>& device() const { return device_; }
  const StepCapacity& capacity() const { return capacity_; }
  const PoolFormat& format() const { return format_; }
  // The shape and config that the step is planned for; only kernels with the same ones can use it.
  const StepShape& shape() const { return shape_; }
  const KernelConfig& config() const { return config_; }
  // Returns the query tokens of the latest update.
  int num_tokens() const { return num_tokens_; }
  // Returns the page lists that the step refers to, or null before the first update.
  const TensorView* pages() const { return tensors_ ? &tensors_->pages : nullptr; }
  // Tells whether the mask orders tokens otherwise than their positions for RoPE.
  bool has_mask_base() const { return params_.inputs.mask_base != nullptr; }
  // Returns the device memory of the step, in bytes.
  std::size_t bytes() const { return memory_->buffer().bytes(); }

  enum Phase { kDecode, kPrefill };
  // Returns true if the capacity allows requests for this phase's attend kernel.
  bool serves(Phase phase) const { return params_.phase[phase].work.num_ctas > 0; }
  const StepView& view() const { return params_.step; }
  const WorkView& work(Phase phase) const { return params_.phase[phase].work; }
  // Returns true if the step has scratch for rotated keys.
  bool rotates() const { return rotation_.runs.max_runs > 0; }
  const StepRotation& rotation() const { return rotation_; }
  // Returns the cascade, or null if the step has none.
  const CascadeParams* cascade() const {
    return cascade_.plan.num_planners > 0 ? &cascade_ : nullptr;
  }
  const StepPageMass& page_mass() const { return page_mass_; }
  // Adds the step's memory and its page lists, which every kernel of the step may access.
  void add_to(AccessedMemory& accessed) const;
  // The memory that view() and work() point into. Kernels write to it even if the step is const.
  StepMemory& memory() const { return *memory_; }

 private:
  void check_shapes(const StepTensors& tensors) const;
  // Numbers the runs of the step, which the planner needs, and clears the terms of page masses.
  void plan_page_mass(Stream stream, AccessedMemoryFn accessed_memory);
  // Makes the shared step, which takes segments from the step itself, and plans both.
  void plan_with_cascade(int ctas, Stream stream, AccessedMemoryFn accessed_memory);
  // Plans attention over the scratch. The planner has planned all other attention.
  void plan_rotation(Stream stream, AccessedMemoryFn accessed_memory);

  std::shared_ptr<const Device> device_;
  StepKernels kernels_;
  StepShape shape_;
  KernelConfig config_;
  PoolFormat format_;
  StepCapacity capacity_;
  int num_tokens_ = 0;
  std::string mask_base_refusal_;       // empty: a mask_base is allowed
  std::optional<StepTensors> tensors_;  // the latest update's
  PlanParams params_{};
  CascadeParams cascade_{};
  StepRotation rotation_{};
  StepPageMass page_mass_{};
  std::unique_ptr<StepMemory> memory_;
};

}  // namespace lazyrope
