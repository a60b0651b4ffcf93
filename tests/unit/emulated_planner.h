// Runs the planner's kernel in the emulator, as on a GPU with any number of SMs.
#pragma once

#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "runtime/emulator/device.h"
#include "runtime/engine/kernel_set.h"
#include "runtime/step/accessed_memory.h"
#include "runtime/step/step_layout.h"
#include "tests/support/engines.h"
#include "tests/support/host_tensor.h"
#include "tests/support/metadata.h"

namespace lazyrope {

// Plans steps with the emulated kernel.
class EmulatedPlanner {
 public:
  struct Layout {
    StepShape shape;
    KernelConfig config;
    StepCapacity capacity;
    int sm_count;
    int page_size = 16;
    bool has_queue = false;
    bool finds_races = true;  // the emulator searches for races, which takes most of the time
  };

  EmulatedPlanner(const KernelSpec& spec, const Arch& arch, const KernelConfig& config) {
    const KernelSetRequest request = {spec, &arch, {KernelKind::kPlan}, {config}, ""};
    kernel_ = compile_sets(shared_engine(), {request}, {}).front().kernels().front();
  }

  // Plans a step in memory that holds other values. The previous plan is lost.
  void plan(StepArrays& arrays, const Layout& layout) {
    lay_out(layout);
    params_.inputs = inputs(arrays, layout.page_size);
    params_.page_size = divisor(layout.page_size);
    params_.phase[Step::kPrefill].has_queue = layout.has_queue ? 1 : 0;
    bool has_measurements = false;
    for (const PlanPhase& phase : params_.phase) {
      if (phase.scratch.counter == nullptr) continue;
      *phase.scratch.counter = 0;
      has_measurements = true;
    }
    const StepTensors tensors = arrays.tensors();
    emulator_options().races = layout.finds_races;
    launch(tensors);
    if (has_measurements) launch(tensors);  // the kernel must have reset the counter
    emulator_options().races = false;
  }

  const PlanParams& params() const { return params_; }

  // Returns the phases that the step has.
  std::span<const PlanPhase> phases() const {
    const bool has_prefill = params_.phase[Step::kPrefill].work.num_ctas > 0;
    return std::span(params_.phase).first(has_prefill ? 2 : 1);
  }

 private:
  void lay_out(const Layout& layout) {
    params_ = {};
    const auto lay_out_at = [&](std::byte* memory) {
      return lay_out_step(memory, layout.shape, layout.config, layout.capacity, layout.sm_count,
                          params_);
    };
    const std::size_t bytes = lay_out_at(nullptr);
    memory_.emplace(ElementType::kInt32, std::vector{static_cast<std::int64_t>(bytes / 4)});
    std::memset(memory_->data<std::byte>(), 0x5a, bytes);
    lay_out_at(memory_->data<std::byte>());
  }

  static StepInputs inputs(const StepArrays& arrays, int page_size) {
    return {.q_indptr = arrays.q_indptr.data(),
            .segment_indptr = arrays.segment_indptr.data(),
            .num_requests = static_cast<int>(arrays.q_indptr.size()) - 1,
            .num_segments = static_cast<int>(arrays.base.size()),
            .num_tokens = static_cast<int>(arrays.q_position.size()),
            .page_size = page_size,
            .q_position = arrays.q_position.data(),
            .base = arrays.base.data(),
            .start = arrays.start.data(),
            .length = arrays.length.data(),
            .lead = arrays.lead.data(),
            .first_page = arrays.first_page.data(),
            .pages = arrays.pages.data(),
            .mask_base = nullptr};
  }

  void launch(const StepTensors& tensors) const {
    kernel_->on(*emulator_device())
        .launch(static_cast<int>(phases().size()) * params_.num_planners, &params_, nullptr, [&] {
          AccessedMemory accessed;
          add_inputs(tensors, accessed);
          accessed.reads("pages", tensors.pages).writes("the step", memory_->view());
          return accessed.ranges();
        });
  }

  std::shared_ptr<const Kernel> kernel_;
  std::optional<HostTensor> memory_;
  PlanParams params_{};
};

}  // namespace lazyrope
