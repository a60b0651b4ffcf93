#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "codegen/kernel_config.h"
#include "runtime/attention/pool_maps.h"
#include "runtime/engine/engine.h"
#include "runtime/spec/spec.h"
#include "runtime/step/append_step.h"
#include "runtime/step/step.h"

namespace lazyrope {

struct KernelSet;
struct Tuning;

struct CompileOptions {
  std::optional<KernelConfig> config = {};  // the default of the spec and arch where not given
  EngineOptions engine = {};
  std::shared_ptr<const Tuning> tuning = {};  // that chose the config, if one did
};

// The compiled kernels of one attention, and the calls that launch them. Immutable; calls may come
// from several threads.
class Attention {
 public:
  // With the config asked for, or else the first candidate that does not spill registers.
  // SpecError, CompileError.
  static std::shared_ptr<const Attention> compile(Engine& engine, const AttentionSpec& spec,
                                                  const Arch& arch,
                                                  const CompileOptions& options = {});
  // Of what came of its attention_set(). Throws the first failure in it.
  static std::shared_ptr<const Attention> of(const AttentionSpec& spec, const Arch& arch,
                                             const KernelSet& set,
                                             std::shared_ptr<const Tuning> tuning = {});

  const AttentionSpec& spec() const { return spec_; }
  const Arch& arch() const { return arch_; }
  const KernelConfig& config() const { return config_; }
  // The record of the measurements that chose the config; null where it is the default or was
  // given.
  const std::shared_ptr<const Tuning>& tuning() const { return tuning_; }
  // Of the attend kernels.
  std::string compiler() const;
  const std::vector<std::shared_ptr<const Kernel>>& kernels() const { return kernels_; }
  const Kernel& kernel(KernelKind kind) const {
    return *kernels_.at(static_cast<std::size_t>(kind));
  }

  // An empty step; update() fills it.
  std::unique_ptr<Step> make_step(std::shared_ptr<const Device> device, PoolFormat format,
                                  StepCapacity capacity, Stream stream) const;
  // Device memory that such a step takes on a GPU of so many SMs. SpecError.
  std::size_t step_bytes(StepCapacity capacity, int sm_count) const;
  std::unique_ptr<AppendStep> make_append_step(std::shared_ptr<const Device> device,
                                               PoolFormat format, AppendCapacity capacity) const;

  // out = attention of q, both [tokens, num_q_heads, head_dim], over the step's segments in the
  // pool; lse, if given, [tokens, num_q_heads] float32, is the natural logarithm of the sum of
  // exponentials. `sinks`, if and only if the spec has them: [num_q_heads] float32. Rows of q
  // beyond the step's tokens are left alone. Asynchronous. SpecError, DriverError.
  void attend(const TensorView& q, const PoolTensors& pool, const Step& step, const TensorView& out,
              const std::optional<TensorView>& lse, Stream stream,
              const std::optional<TensorView>& sinks = {}) const;

  // Stores k and v, both [tokens, num_kv_heads, head_dim], where `step` says. Asynchronous.
  void append(const TensorView& k, const TensorView& v, const PoolTensors& pool,
              const AppendStep& step, Stream stream) const;

 private:
  Attention(AttentionSpec spec, const Arch& arch, KernelConfig config,
            std::vector<std::shared_ptr<const Kernel>> kernels,
            std::shared_ptr<const Tuning> tuning)
      : spec_(std::move(spec)),
        arch_(arch),
        config_(config),
        kernels_(std::move(kernels)),
        tuning_(std::move(tuning)) {}

  StepShape step_shape() const;
  void check_step(const Step& step) const;
  const float* checked_sinks(const std::optional<TensorView>& sinks, const Device& device) const;
  void check_query(const char* name, const TensorView& tensor, int heads, int bytes,
                   const Device& device) const;

  AttentionSpec spec_;
  const Arch& arch_;
  KernelConfig config_;
  std::vector<std::shared_ptr<const Kernel>> kernels_;  // by KernelKind
  std::shared_ptr<const Tuning> tuning_;
  mutable PoolMapCache pool_maps_;
};

}  // namespace lazyrope
