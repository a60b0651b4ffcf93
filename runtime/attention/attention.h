#pragma once

#include <array>
#include <memory>
#include <optional>
#include <vector>

#include "codegen/kernel_config.h"
#include "runtime/attention/pool_maps.h"
#include "runtime/engine/defer_prefill.h"
#include "runtime/engine/deferred_kernel.h"
#include "runtime/engine/engine.h"
#include "runtime/spec/spec.h"
#include "runtime/step/append_step.h"
#include "runtime/step/batch.h"
#include "runtime/step/step.h"
#include "templates/abi/attend.h"
#include "templates/abi/key_bias.h"

namespace lazyrope {

struct KernelSet;
struct Tuning;

// Options of Attention::compile().
struct CompileOptions {
  std::optional<KernelConfig> config = {};  // none: the default of the spec and arch
  EngineOptions engine = {};
  std::shared_ptr<const Tuning> tuning = {};  // the measurements that chose `config`, if any
  // If set, the kernel of prefill is compiled when it is first needed, or by the function that this
  // receives before the others are compiled, and again if another config is chosen. That kernel's
  // failure is then thrown where it is needed, even if only its config spills.
  DeferPrefill defer_prefill = {};
};

// The compiled kernels of one attention, and the calls that launch them. Immutable and thread-safe;
// a step may be used by one thread at a time.
//
// Calls are asynchronous on the stream. They throw SpecError for arguments that do not fit, and
// DriverError if the driver fails.
class Attention {
 public:
  // Compiles the kernels of options.config, or else of the first config that does not spill
  // registers. Throws SpecError or CompileError.
  static std::shared_ptr<const Attention> compile(Engine& engine, const AttentionSpec& spec,
                                                  const Arch& arch,
                                                  const CompileOptions& options = {});
  // Returns the attention of a set of compiled kernels (attention_set()). Throws the set's first
  // failure.
  static std::shared_ptr<const Attention> of(const AttentionSpec& spec, const Arch& arch,
                                             const KernelSet& set,
                                             std::shared_ptr<const Tuning> tuning = {});

  const AttentionSpec& spec() const { return spec_; }
  const Arch& arch() const { return arch_; }
  const KernelConfig& config() const { return config_; }
  // The measurements that chose the config. Null for the default and for a config that was given.
  const std::shared_ptr<const Tuning>& tuning() const { return tuning_; }
  // Returns the compiler of the attend kernels. If they have two, returns "decode's, prefill's".
  std::string compiler() const;
  // Returns all kernels in the order of attention_kernels(), after waiting for that of prefill.
  std::vector<std::shared_ptr<const Kernel>> kernels() const;
  // Returns a kernel, after waiting for it if it is that of prefill.
  const Kernel& kernel(KernelKind kind) const { return *shared_kernel(kind); }

  // Returns an empty step, which update() fills. Loads on the device all kernels that the step
  // needs.
  std::unique_ptr<Step> make_step(const std::shared_ptr<const Device>& device, PoolFormat format,
                                  StepCapacity capacity, Stream stream) const;
  // Returns the capacity of a step for the batch. Where the kernels rotate keys into scratch and
  // the batch's capacity has no rotated_tokens, it has scratch for the batch's present requests, if
  // that takes at most kMaxDefaultScratch bytes. So it has room for their page masses, if the spec
  // has page_mass.
  StepCapacity capacity_for(const Batch& batch) const;
  static constexpr std::int64_t kMaxDefaultScratch = std::int64_t{1} << 30;
  // Returns the device memory in bytes of a step of make_step(), on a GPU with sm_count SMs. Throws
  // SpecError.
  std::size_t step_bytes(StepCapacity capacity, int sm_count) const;
  // Returns an empty append step, which update() fills. Loads on the device the kernels that it
  // needs.
  std::unique_ptr<AppendStep> make_append_step(std::shared_ptr<const Device> device,
                                               PoolFormat format, AppendCapacity capacity) const;

  // Computes out = attention of q over the step's segments in the pool. q and out are [tokens,
  // num_q_heads, head_dim]. lse is [tokens, num_q_heads] float32, the natural logarithm of the sum
  // of exponentials, and optional. The pool has a bias of keys if and only if the spec has one, and
  // the LSEs of entries if and only if the spec has states. `sinks` is [num_q_heads] float32,
  // required if the spec has sinks and refused otherwise. Rows beyond the step's tokens are not
  // written. page_mass is [runs] float32, with runs numbered as in Batch::run_indptr(), and
  // optional. It gets the sum of the weights of each run of 16 slots over the request's query
  // tokens and heads. Masses beyond its end are dropped. A request for which the step's
  // capacity.mass_pages leaves no room gets NaN.
  void attend(const TensorView& q, const PoolTensors& pool, const Step& step, const TensorView& out,
              const std::optional<TensorView>& lse, Stream stream,
              const std::optional<TensorView>& sinks = {},
              const std::optional<TensorView>& page_mass = {}) const;

  // Stores k and v, both [tokens, num_kv_heads, head_dim], in the pool at the slots of `step`.
  void append(const TensorView& k, const TensorView& v, const PoolTensors& pool,
              const AppendStep& step, Stream stream) const;

 private:
  Attention(AttentionSpec spec, const Arch& arch, KernelConfig config,
            std::vector<std::shared_ptr<DeferredKernel>> kernels,
            std::shared_ptr<const Tuning> tuning);

  struct AttendTensors;

  static std::shared_ptr<const Attention> compile_deferring(Engine& engine,
                                                            const AttentionSpec& spec,
                                                            const Arch& arch,
                                                            const CompileOptions& options);
  const std::shared_ptr<const Kernel>& shared_kernel(KernelKind kind) const {
    return kernels_.at(index_of_.at(static_cast<std::size_t>(kind)))->get();
  }
  void load(KernelKind kind, const Device& device) const { kernel(kind).on(device); }
  StepShape step_shape() const;
  void check_step(const Step& step) const;
  void check_query(const char* name, const TensorView& tensor, int heads, int bytes,
                   const Device& device) const;
  void check_lse(const AttendTensors& tensors, const Device& device) const;
  void check_sinks(const std::optional<TensorView>& sinks, const Device& device) const;
  void check_page_mass(const AttendTensors& tensors, const Step& step) const;
  // Checks that an output shares no memory with what the attend kernels read.
  static void check_own_memory(const char* name, const TensorView& output,
                               const AttendTensors& tensors, const Step& step);
  void check_attend(const AttendTensors& tensors, const Step& step) const;
  // The parameters of a kernel without maps of the pool. Kernels without a bias read the first
  // ones.
  using LaunchParams = BiasedParams<AttendParams>;
  // Returns the parameters that all attend kernels share; `work` is empty.
  LaunchParams attend_params(const AttendTensors& tensors, const Step& step) const;
  // Launches an attend kernel with parameters that have the pool, the step and the work. The pool
  // has `pages` pages of `page_size` slots.
  void launch_kernel(KernelKind kind, const TileConfig& tile, const LaunchParams& params,
                     std::int64_t pages, int page_size, const Device& device, Stream stream,
                     AccessedMemoryFn accessed_memory) const;
  // Rotates the pool's keys into the step's scratch, and attends to it.
  void attend_rotated(LaunchParams params, const Step& step, Stream stream,
                      AccessedMemoryFn accessed_memory) const;
  // Adds up the terms of page masses that the attend kernels stored.
  void sum_page_mass(const AttendParams& params, const TensorView& page_mass, const Step& step,
                     Stream stream, AccessedMemoryFn accessed_memory) const;
  // Launches the kernel of each phase that the step serves, and those of rotated keys, of the
  // cascade and of page masses.
  void launch_attend(const LaunchParams& params, const AttendTensors& tensors, const Step& step,
                     Stream stream) const;
  void check_append(const TensorView& k, const TensorView& v, const PoolTensors& pool,
                    const AppendStep& step) const;

  AttentionSpec spec_;
  const Arch& arch_;
  KernelConfig config_;
  std::optional<KernelConfig> rotated_config_;            // codegen/rotated_keys.h
  AttentionSpec scratch_spec_;                            // the spec with a pool of 16 bits
  std::vector<std::shared_ptr<DeferredKernel>> kernels_;  // those of attention_kernels()
  std::array<std::size_t, kKernelKinds> index_of_{};      // by KernelKind
  std::shared_ptr<const Tuning> tuning_;
  mutable PoolMapCache pool_maps_;
};

}  // namespace lazyrope
