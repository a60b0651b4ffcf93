#include "runtime/step/step.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "codegen/error.h"
#include "runtime/base/trace.h"
#include "runtime/step/checks.h"
#include "runtime/step/step_check.h"
#include "runtime/step/step_layout.h"

namespace lazyrope {
namespace {

constexpr int kChunkTerms = 16 / sizeof(uint32);  // terms of page masses that are cleared at once
constexpr std::int64_t kMaxRows = std::int64_t{1} << 30;

void check_count(const char* name, int value, int least) {
  if (value < least)
    throw SpecError(fmt::format("capacity: {} = {}; it must be at least {}", name, value, least));
}

// Keys are rotated for prefill alone, and only where the attention has kernels for it.
int complete_rotated_tokens(const StepCapacity& capacity, const StepShape& shape,
                            const KernelConfig& config) {
  const int most = (shape.packed ? kMaxPackedRuns : kMaxScratchRuns) * kRunSlots;
  check_count("rotated_tokens", capacity.rotated_tokens, 0);
  if (capacity.rotated_tokens > most)
    throw SpecError(fmt::format("capacity: rotated_tokens = {}{}; it must be at most {}",
                                capacity.rotated_tokens, shape.packed ? " with packed_prefill" : "",
                                most));
  const int rows = capacity.tokens_per_request * shape.group_size;
  return shape.rotated && rows > config.decode.rows_per_head() ? capacity.rotated_tokens : 0;
}

// The terms of all pairs and heads are counted in int32.
int complete_mass_pages(const StepCapacity& capacity, const StepShape& shape) {
  check_count("mass_pages", capacity.mass_pages, 0);
  const int heads = shape.num_kv_heads * shape.group_size;
  const int most = std::min(kMaxTokenRuns, std::numeric_limits<int>::max() / heads);
  if (shape.page_mass && capacity.mass_pages > most)
    throw SpecError(
        fmt::format("capacity: mass_pages = {} with {} query heads; it must be at most "
                    "{}",
                    capacity.mass_pages, heads, most));
  return shape.page_mass ? capacity.mass_pages : 0;
}

StepCapacity complete(StepCapacity capacity, const StepShape& shape, const KernelConfig& config) {
  check_count("requests", capacity.requests, 0);
  check_count("segments", capacity.segments, 0);
  check_count("query_tokens", capacity.query_tokens, 0);
  check_count("tokens_per_request", capacity.tokens_per_request, 0);
  if (shape.cascade && capacity.segments > 1 << kShareIndexBits)
    throw SpecError(fmt::format("capacity: segments = {} with a cascade; it must be at most {}",
                                capacity.segments, 1 << kShareIndexBits));
  if (static_cast<std::int64_t>(capacity.query_tokens) * shape.group_size > kMaxRows)
    throw SpecError(
        fmt::format("capacity: query_tokens = {} with {} query heads per KV head; their "
                    "product must be at most {}",
                    capacity.query_tokens, shape.group_size, kMaxRows));
  if (capacity.tokens_per_request == 0 || capacity.tokens_per_request > capacity.query_tokens)
    capacity.tokens_per_request = capacity.query_tokens;
  capacity.rotated_tokens = complete_rotated_tokens(capacity, shape, config);
  capacity.mass_pages = complete_mass_pages(capacity, shape);
  return capacity;
}

StepInputs inputs_of(const StepTensors& t, int page_size) {
  return {.q_indptr = ints(t.q_indptr),
          .segment_indptr = ints(t.segments.indptr),
          .num_requests = static_cast<int32>(t.q_indptr.shape[0] - 1),
          .num_segments = static_cast<int32>(t.segments.base.shape[0]),
          .num_tokens = static_cast<int32>(t.q_position.shape[0]),
          .page_size = page_size,
          .q_position = ints(t.q_position),
          .base = ints(t.segments.base),
          .start = ints(t.segments.start),
          .length = ints(t.segments.length),
          .lead = t.segments.lead ? ints(*t.segments.lead) : nullptr,
          .first_page = ints(t.segments.first_page),
          .pages = ints(t.pages),
          .mask_base = t.segments.mask_base ? ints(*t.segments.mask_base) : nullptr};
}

// Returns the inputs of a step whose requests keep the segments that the share kernel leaves them.
StepInputs own_inputs(StepInputs inputs, const OwnSegmentArrays& own) {
  inputs.segment_indptr = own.segment_indptr;
  inputs.num_segments *= kMaxKeptSegments;
  inputs.base = own.segments.base;
  inputs.start = own.segments.start;
  inputs.length = own.segments.length;
  inputs.lead = own.segments.lead;
  inputs.first_page = own.segments.first_page;
  if (inputs.mask_base != nullptr) inputs.mask_base = own.mask_base;
  return inputs;
}

}  // namespace

std::string to_string(const StepCapacity& c) {
  std::string text =
      fmt::format("requests = {}, segments = {}, query_tokens = {}, tokens_per_request = {}",
                  c.requests, c.segments, c.query_tokens, c.tokens_per_request);
  if (c.rotated_tokens > 0) text += fmt::format(", rotated_tokens = {}", c.rotated_tokens);
  if (c.mass_pages > 0) text += fmt::format(", mass_pages = {}", c.mass_pages);
  return text;
}

void check_format(const PoolFormat& format) {
  if (format.page_size < 16 || format.page_size % 16 != 0)
    throw SpecError(
        fmt::format("page_size = {}; it must be a positive multiple of 16", format.page_size));
}

std::size_t step_bytes(const StepShape& shape, const KernelConfig& config, StepCapacity capacity,
                       int sm_count) {
  if (sm_count < 1) throw SpecError(fmt::format("sm_count = {}; it must be at least 1", sm_count));
  PlanParams params{};
  CascadeParams cascade{};
  StepRotation rotation{};
  StepPageMass page_mass{};
  capacity = complete(capacity, shape, config);
  return lay_out_step(nullptr, shape, config, capacity, sm_count, params) +
         lay_out_rotation(nullptr, shape, capacity, sm_count, params, rotation) +
         lay_out_page_mass(nullptr, shape, capacity, page_mass) +
         lay_out_cascade(nullptr, shape, config, capacity, sm_count, cascade);
}

Step::Step(std::shared_ptr<const Device> device, StepKernels kernels, StepShape shape,
           const KernelConfig& config, PoolFormat format, StepCapacity capacity, Stream stream)
    : device_(std::move(device)),
      kernels_(std::move(kernels)),
      shape_(std::move(shape)),
      config_(config),
      format_(format),
      capacity_(complete(capacity, shape_, config_)) {
  check_format(format_);
  const int sms = device_->sm_count();
  const std::size_t bytes = step_bytes(shape_, config, capacity_, sms);
  check_room(to_string(capacity_), bytes, *device_);
  memory_ = std::make_unique<StepMemory>(device_, bytes, stream);
  auto* memory = static_cast<std::byte*>(memory_->buffer().data());
  memory += lay_out_step(memory, shape_, config, capacity_, sms, params_);
  memory += lay_out_rotation(memory, shape_, capacity_, sms, params_, rotation_);
  memory += lay_out_page_mass(memory, shape_, capacity_, page_mass_);
  lay_out_cascade(memory, shape_, config, capacity_, sms, cascade_);
  params_.first_runs = page_mass_.plan.first_runs;
}

void add_inputs(const StepTensors& tensors, AccessedMemory& accessed) {
  accessed.reads("q_indptr", tensors.q_indptr)
      .reads("q_position", tensors.q_position)
      .reads("segments.indptr", tensors.segments.indptr)
      .reads("segments.base", tensors.segments.base)
      .reads("segments.start", tensors.segments.start)
      .reads("segments.length", tensors.segments.length)
      .reads("segments.first_page", tensors.segments.first_page)
      .reads("segments.lead", tensors.segments.lead)
      .reads("segments.mask_base", tensors.segments.mask_base)
      .reads("segments.memory", tensors.segments.memory)
      .reads("mass_tokens", tensors.mass_tokens);
}

void Step::check_shapes(const StepTensors& t) const {
  const std::int64_t requests = length_of_ints("q_indptr", t.q_indptr, *device_) - 1;
  if (requests < 0) throw SpecError("q_indptr has no element; it must have one more than requests");
  const std::int64_t segments = length_of_ints("segments.base", t.segments.base, *device_);
  const std::int64_t tokens = length_of_ints("q_position", t.q_position, *device_);
  check_within_capacity("requests", requests, capacity_.requests);
  check_within_capacity("segments", segments, capacity_.segments);
  check_within_capacity("query tokens", tokens, capacity_.query_tokens);
  const Segments& s = t.segments;
  check_length("segments.indptr", s.indptr, requests + 1, *device_);
  check_length("segments.start", s.start, segments, *device_);
  check_length("segments.length", s.length, segments, *device_);
  check_length("segments.first_page", s.first_page, segments, *device_);
  if (s.lead) check_length("segments.lead", *s.lead, segments, *device_);
  if (s.mask_base && !mask_base_refusal_.empty()) throw SpecError(mask_base_refusal_);
  if (s.mask_base) check_length("segments.mask_base", *s.mask_base, segments, *device_);
  if (s.memory && !shape_.states)
    throw SpecError(
        "segments.memory is given; the spec has no attention states (states=True makes segments "
        "memories)");
  if (s.memory) check_length("segments.memory", *s.memory, segments, *device_);
  length_of_ints("pages", t.pages, *device_);
  if (t.mass_tokens) check_length("mass_tokens", *t.mass_tokens, requests, *device_);
}

void Step::update(const StepTensors& tensors, bool check, Stream stream) {
  TraceSpan span("plan");
  span.with("q_indptr", tensors.q_indptr)
      .with("q_position", tensors.q_position)
      .with("segments", tensors.segments.base)
      .with("pages", tensors.pages);
  check_shapes(tensors);
  if (check) {
    refuse_in_capture("check=True", *device_, stream);
    check_step_values(StepValues::copy_of(tensors, *device_, stream), format_.page_size, capacity_);
  }
  params_.inputs = inputs_of(tensors, format_.page_size);
  params_.page_size = divisor(format_.page_size);
  num_tokens_ = params_.inputs.num_tokens;
  tensors_ = tensors;
  if (shape_.page_mass)
    page_mass_.plan.mass_tokens = tensors.mass_tokens ? ints(*tensors.mass_tokens) : nullptr;
  if (shape_.states)
    params_.first_runs = tensors.segments.memory ? ints(*tensors.segments.memory) : nullptr;
  memory_->clear_if_broken(stream);
  const int ctas = params_.num_planners * (serves(kPrefill) ? kPlanPhases : 1);
  const auto accessed_memory = [&] {
    AccessedMemory accessed;
    add_inputs(tensors, accessed);
    add_to(accessed);
    return accessed.ranges();
  };
  memory_->run([&] {
    if (shape_.page_mass) plan_page_mass(stream, accessed_memory);
    if (shape_.cascade)
      plan_with_cascade(ctas, stream, accessed_memory);
    else
      kernels_.plan->on(*device_).launch(ctas, &params_, stream, accessed_memory);
    if (rotates()) plan_rotation(stream, accessed_memory);
  });
}

void Step::plan_with_cascade(int ctas, Stream stream, AccessedMemoryFn accessed_memory) {
  int shared_ctas = 0;
  if (cascade() != nullptr) {
    cascade_.share.inputs = params_.inputs;
    cascade_.share.page_size = params_.page_size;
    cascade_.plan.inputs.page_size = params_.inputs.page_size;
    cascade_.plan.inputs.pages = params_.inputs.pages;
    cascade_.plan.page_size = params_.page_size;
    params_.inputs = own_inputs(params_.inputs, cascade_.share.own);
    shared_ctas = cascade_.plan.num_planners;
    kernels_.share->on(*device_).launch(1, &cascade_.share, stream, accessed_memory);
  }
  const CascadePlanParams both = {params_, cascade_.plan, ctas, 0};
  kernels_.plan->on(*device_).launch(ctas + shared_ctas, &both, stream, accessed_memory);
}

void Step::plan_page_mass(Stream stream, AccessedMemoryFn accessed_memory) {
  PlanPageMassParams& plan = page_mass_.plan;
  plan.inputs = params_.inputs;
  const std::int64_t terms = std::int64_t{plan.max_token_runs} * plan.num_heads;
  const std::int64_t terms_of_cta =
      std::int64_t{kPlanPageMassThreads} * kClearedChunks * kChunkTerms;
  const std::int64_t ctas = 1 + (terms + terms_of_cta - 1) / terms_of_cta;
  kernels_.plan_page_mass->on(*device_).launch(static_cast<int>(ctas), &plan, stream,
                                               accessed_memory);
}

void Step::plan_rotation(Stream stream, AccessedMemoryFn accessed_memory) {
  PlanRotationParams& runs = rotation_.runs;
  runs.inputs = params_.inputs;
  runs.page_size = params_.page_size;
  const int threads = runs.max_runs * (shape_.packed ? kRunSlots : 1);
  kernels_.plan_rotation->on(*device_).launch(
      (threads + kPlanRotationThreads - 1) / kPlanRotationThreads, &runs, stream, accessed_memory);
  PlanParams& plan = rotation_.plan;
  plan.inputs = params_.inputs;
  plan.inputs.q_indptr = runs.rotated.q_indptr;
  plan.inputs.first_page = runs.rotated.first_page;
  plan.inputs.lead = runs.rotated.lead;
  plan.inputs.length = runs.rotated.length;
  plan.inputs.pages = runs.rotated.pages;
  if (shape_.packed) {
    plan.inputs.base = runs.rotated.base;
    plan.inputs.start = runs.rotated.start;
    plan.inputs.mask_base = runs.rotated.mask_base;
  }
  plan.inputs.page_size = kRunSlots;
  plan.page_size = divisor(kRunSlots);
  plan.first_runs = params_.first_runs;
  kernels_.plan->on(*device_).launch(plan.num_planners, &plan, stream, accessed_memory);
}

void Step::add_to(AccessedMemory& accessed) const {
  accessed.writes("the step", memory_->buffer());
  if (tensors_) accessed.reads("pages", tensors_->pages);
}

void Step::check_pages(std::int64_t num_pages, Stream stream) const {
  refuse_in_capture("check=True", *device_, stream);
  memory_->check_usable();  // after an interrupted update() the caller may have dropped its tensors
  if (!tensors_) return;
  check_step_values(StepValues::copy_of(*tensors_, *device_, stream), format_.page_size, capacity_,
                    num_pages);
}

}  // namespace lazyrope
