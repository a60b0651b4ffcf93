#include "runtime/lazyrope.h"

#include "runtime/attention/attention.h"
#include "runtime/attention/reposition.h"
#include "runtime/driver/context.h"
#include "runtime/engine/devices.h"
#include "runtime/engine/engine.h"
#include "runtime/tuning/tuned.h"

namespace lazyrope {
namespace {

int rows(const TensorView& tensor) {
  return tensor.rank > 0 ? static_cast<int>(tensor.shape[0]) : 0;
}

const Arch& arch_named(std::string_view name) {
  return name.empty() ? current_arch() : find_arch(name);
}

}  // namespace

int gpu_count() {
  try {
    return Devices::get().count();
  } catch (const DriverError&) {
    return 0;
  }
}

std::shared_ptr<const Attention> compile(const AttentionSpec& spec, std::string_view arch,
                                         Tune tune, const DeferPrefill& defer_prefill) {
  return compile_for(Engine::get(), spec, arch, tune, {.defer_prefill = defer_prefill});
}

std::shared_ptr<Step> plan(const Attention& attention, const StepTensors& tensors,
                           PoolFormat format, StepCapacity capacity, Stream stream, bool check) {
  if (capacity.requests == 0) capacity.requests = rows(tensors.q_indptr) - 1;
  if (capacity.segments == 0) capacity.segments = rows(tensors.segments.base);
  if (capacity.query_tokens == 0) capacity.query_tokens = rows(tensors.q_position);
  std::shared_ptr<Step> step =
      attention.make_step(device_of("q_indptr", tensors.q_indptr), format, capacity, stream);
  step->update(tensors, check, stream);
  return step;
}

void update(Step& step, const StepTensors& tensors, Stream stream, bool check) {
  step.update(tensors, check, stream);
}

std::shared_ptr<Step> plan(const Attention& attention, Batch& batch, PoolFormat format,
                           Stream stream, bool check) {
  std::shared_ptr<Step> step = attention.make_step(device_of("pages", batch.pages()), format,
                                                   attention.capacity_for(batch), stream);
  update(*step, batch, stream, check);
  return step;
}

void update(Step& step, Batch& batch, Stream stream, bool check) {
  step.update(batch.upload(step.format().page_size, stream), check, stream);
}

void attend(const Attention& attention, const TensorView& q, const PoolTensors& pool,
            const Step& step, const TensorView& out, const std::optional<TensorView>& lse,
            Stream stream, const std::optional<TensorView>& sinks,
            const std::optional<TensorView>& page_mass) {
  attention.attend(q, pool, step, out, lse, stream, sinks, page_mass);
}

std::shared_ptr<AppendStep> plan_append(const Attention& attention, const AppendTensors& tensors,
                                        AppendCapacity capacity, PoolFormat format, Stream stream,
                                        bool check) {
  std::shared_ptr<AppendStep> step =
      attention.make_append_step(device_of("spans.indptr", tensors.spans.indptr), format, capacity);
  step->update(tensors, check, stream);
  return step;
}

void update(AppendStep& step, const AppendTensors& tensors, Stream stream, bool check) {
  step.update(tensors, check, stream);
}

std::shared_ptr<AppendStep> plan_append(const Attention& attention, const TokenSlots& slots,
                                        AppendCapacity capacity, PoolFormat format, Stream stream,
                                        bool check) {
  std::shared_ptr<AppendStep> step = attention.make_append_step(
      device_of("slots.slot_mapping", slots.slot_mapping), format, capacity);
  step->update(slots, check, stream);
  return step;
}

void update(AppendStep& step, const TokenSlots& slots, Stream stream, bool check) {
  step.update(slots, check, stream);
}

void append(const Attention& attention, const TensorView& k, const TensorView& v,
            const PoolTensors& pool, const AppendStep& step, Stream stream) {
  attention.append(k, v, pool, step, stream);
}

std::shared_ptr<const Reposition> compile_reposition(const AttentionSpec& spec,
                                                     std::string_view arch) {
  return Reposition::compile(Engine::get(), spec, arch_named(arch));
}

void reposition(const Reposition& mover, const PoolTensors& pool, const AppendStep& source,
                const AppendStep& target, Stream stream) {
  mover.move(pool, source, target, stream);
}

}  // namespace lazyrope
