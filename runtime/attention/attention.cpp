#include "runtime/attention/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numbers>
#include <string_view>
#include <utility>

#include "codegen/error.h"
#include "codegen/rotated_keys.h"
#include "runtime/attention/pool.h"
#include "runtime/attention/pool_maps.h"
#include "runtime/base/trace.h"
#include "runtime/engine/kernel_set.h"
#include "runtime/step/accessed_memory.h"
#include "runtime/step/checks.h"

namespace lazyrope {
namespace {

constexpr int kNewChunkBytes = 8;  // alignment of new keys and values in bytes

// The kernels that only a step with room for prefill needs.
constexpr std::array kPrefillKernels = {KernelKind::kAttendPrefill, KernelKind::kAttendRotated};

TokenTensor tokens_of(const TensorView& t) {
  return {t.data, t.strides[0] * kElementBytes, t.strides[1] * kElementBytes};
}

std::vector<std::shared_ptr<DeferredKernel>> deferred(
    const std::vector<std::shared_ptr<const Kernel>>& kernels) {
  std::vector<std::shared_ptr<DeferredKernel>> result;
  result.reserve(kernels.size());
  for (const auto& kernel : kernels) result.push_back(std::make_shared<DeferredKernel>(kernel));
  return result;
}

// The kernels of prefill, each with its index among all kernels of an attention.
using PrefillKernels = std::vector<std::pair<std::ptrdiff_t, std::shared_ptr<DeferredKernel>>>;

// Returns the kernels of prefill of the request, which are compiled when they are first needed.
PrefillKernels prefill_kernels(const KernelSetRequest& request, const KernelConfig& config,
                               Engine& engine, const CompileOptions& options) {
  PrefillKernels kernels;
  for (std::size_t i = 0; i < request.kinds.size(); ++i) {
    const KernelKind kind = request.kinds[i];
    if (std::ranges::find(kPrefillKernels, kind) == kPrefillKernels.end()) continue;
    kernels.emplace_back(static_cast<std::ptrdiff_t>(i),
                         std::make_shared<DeferredKernel>(
                             engine,
                             KernelRequest{render(kind, request.spec, config, *request.arch),
                                           request.arch, request.name},
                             EngineOptions{.allow_spills = options.engine.allow_spills,
                                           .cache_only = options.engine.cache_only}));
  }
  options.defer_prefill([kernels] {
    for (const auto& [index, kernel] : kernels) kernel->get();
  });
  return kernels;
}

// Returns why the kernels of a spec take no mask_base, or "".
std::string_view mask_base_refusal(const AttentionSpec& spec) {
  if (spec.query_form == RopeForm::kRaw && spec.rope.rotary_dim > 0)
    return R"(segments.mask_base with query_form = "raw": the kernel would rotate a query by its place )"
           R"(in the order of the mask; rotate queries before the call (query_form="rotated"), or give )"
           "no mask_base";
  if (spec.key_form == KeyForm::kRaw)
    return R"(segments.mask_base with key_form = "raw": the kernel would rotate keys by their place in )"
           "the order of the mask; store local keys, or give no mask_base";
  return "";
}

}  // namespace

// The caller's tensors of one attend() call.
struct Attention::AttendTensors {
  const TensorView& q;
  const PoolTensors& pool;
  const TensorView& out;
  const std::optional<TensorView>& lse;
  const std::optional<TensorView>& sinks;
  const std::optional<TensorView>& page_mass;
};

std::shared_ptr<const Attention> Attention::compile(Engine& engine, const AttentionSpec& spec,
                                                    const Arch& arch,
                                                    const CompileOptions& options) {
  validate(spec);
  TraceSpan span("compile");
  span.with("spec", [&] { return describe(spec.kernel_spec()); }).with("arch", arch.name);
  if (options.defer_prefill) return compile_deferring(engine, spec, arch, options);
  return of(
      spec, arch,
      compile_sets(engine, {attention_set(spec, arch, options.config)}, options.engine).front(),
      options.tuning);
}

std::shared_ptr<const Attention> Attention::of(const AttentionSpec& spec, const Arch& arch,
                                               const KernelSet& set,
                                               std::shared_ptr<const Tuning> tuning) {
  return std::shared_ptr<const Attention>(
      new Attention(spec, arch, set.config, deferred(set.kernels()), std::move(tuning)));
}

std::shared_ptr<const Attention> Attention::compile_deferring(Engine& engine,
                                                              const AttentionSpec& spec,
                                                              const Arch& arch,
                                                              const CompileOptions& options) {
  const KernelSetRequest request = attention_set(spec, arch, options.config);
  PrefillKernels prefill = prefill_kernels(request, request.configs.front(), engine, options);
  KernelSetRequest others = request;
  for (const KernelKind kind : kPrefillKernels) std::erase(others.kinds, kind);
  const KernelSet set = compile_sets(engine, {others}, options.engine).front();
  auto kernels = deferred(set.kernels());
  if (set.config != request.configs.front())
    prefill = prefill_kernels(request, set.config, engine, options);
  for (auto& [index, kernel] : prefill) kernels.insert(kernels.begin() + index, std::move(kernel));
  return std::shared_ptr<const Attention>(
      new Attention(spec, arch, set.config, std::move(kernels), options.tuning));
}

Attention::Attention(AttentionSpec spec, const Arch& arch, KernelConfig config,
                     std::vector<std::shared_ptr<DeferredKernel>> kernels,
                     std::shared_ptr<const Tuning> tuning)
    : spec_(std::move(spec)),
      arch_(arch),
      config_(config),
      rotated_config_(rotated_keys_config(spec_.kernel_spec(), arch)),
      scratch_spec_(spec_),
      kernels_(std::move(kernels)),
      tuning_(std::move(tuning)) {
  scratch_spec_.kv_dtype.reset();
  index_of_.fill(kernels_.size());  // no kernel
  const std::vector<KernelKind> kinds = attention_kernels(spec_.kernel_spec(), arch);
  for (std::size_t i = 0; i < kinds.size(); ++i)
    index_of_.at(static_cast<std::size_t>(kinds[i])) = i;
}

std::string Attention::compiler() const {
  const std::string& decode = kernel(KernelKind::kAttendDecode).binary().compiler;
  const std::string& prefill = kernel(KernelKind::kAttendPrefill).binary().compiler;
  return decode == prefill ? decode : fmt::format("{}, {}", decode, prefill);
}

std::vector<std::shared_ptr<const Kernel>> Attention::kernels() const {
  std::vector<std::shared_ptr<const Kernel>> kernels;
  kernels.reserve(kernels_.size());
  for (const auto& kernel : kernels_) kernels.push_back(kernel->get());
  return kernels;
}

StepShape Attention::step_shape() const {
  return {spec_.group_size(),
          spec_.num_kv_heads,
          spec_.head_dim,
          bytes_of(spec_.pool_dtype()),
          spec_.mask,
          spec_.mask_parameters,
          rotated_config_,
          spec_.cascade,
          spec_.cascade && spec_.query_form == RopeForm::kRotated,
          spec_.page_mass,
          spec_.packed_prefill,
          spec_.states};
}

StepCapacity Attention::capacity_for(const Batch& batch) const {
  StepCapacity capacity = batch.capacity();
  if (rotated_config_ && capacity.rotated_tokens == 0) {
    const std::int64_t tokens =
        batch.run_slots(config_.decode.rows_per_head() / spec_.group_size() + 1);
    const std::int64_t token_bytes =
        std::int64_t{2} * spec_.num_kv_heads * spec_.head_dim * kElementBytes;
    if (tokens * token_bytes <= kMaxDefaultScratch)
      capacity.rotated_tokens = static_cast<int>(tokens);
  }
  if (spec_.page_mass && capacity.mass_pages == 0) {
    const std::int64_t pairs = batch.token_runs();
    // A step has room for a pair even if no query token counts: its calls may ask for masses of 0.
    if (pairs <= kMaxTokenRuns && pairs * spec_.num_q_heads * kFloatBytes <= kMaxDefaultScratch)
      capacity.mass_pages = std::max(static_cast<int>(pairs), 1);
  }
  return capacity;
}

void Attention::check_step(const Step& step) const {
  check_arch(arch_, *step.device());
  // Another attention of the same shape may have planned the step, so its update() may have allowed
  // it.
  if (step.has_mask_base())
    if (const std::string_view why = mask_base_refusal(spec_); !why.empty())
      throw SpecError(std::string(why));
  if (step.shape() == step_shape() && step.config() == config_) return;
  const auto described = [](const StepShape& shape, const KernelConfig& config) {
    std::string text = fmt::format(
        "num_kv_heads = {}, group_size = {}, head_dim = {}, {}-bit pool, mask = \"{}\"",
        shape.num_kv_heads, shape.group_size, shape.head_dim, 8 * shape.kv_bytes, shape.mask);
    for (const auto& [name, value] : shape.mask_parameters)
      text += fmt::format(", {} = {}", name, value);
    if (shape.cascade)
      text += fmt::format(", cascade of {} queries", shape.rotated_queries ? "rotated" : "raw");
    if (shape.rotated)
      text += shape.packed ? ", packed keys" : ", raw keys that are rotated in scratch";
    if (shape.page_mass) text += ", page mass";
    if (shape.states) text += ", states";
    return fmt::format("{} ({})", text, describe(config));
  };
  throw SpecError(fmt::format(
      "the step was planned for {}; the kernels are for {}: make the step with their own plan()",
      described(step.shape(), step.config()), described(step_shape(), config_)));
}

std::size_t Attention::step_bytes(StepCapacity capacity, int sm_count) const {
  return lazyrope::step_bytes(step_shape(), config_, capacity, sm_count);
}

std::unique_ptr<Step> Attention::make_step(const std::shared_ptr<const Device>& device,
                                           PoolFormat format, StepCapacity capacity,
                                           Stream stream) const {
  check_arch(arch_, *device);
  StepKernels kernels = {shared_kernel(KernelKind::kPlan)};
  if (spec_.cascade) kernels.share = shared_kernel(KernelKind::kShare);
  if (rotated_config_) kernels.plan_rotation = shared_kernel(KernelKind::kPlanRotation);
  if (spec_.page_mass) kernels.plan_page_mass = shared_kernel(KernelKind::kPlanPageMass);
  auto step = std::make_unique<Step>(device, std::move(kernels), step_shape(), config_, format,
                                     capacity, stream);
  step->refuse_mask_base(std::string(mask_base_refusal(spec_)));
  // Kernels are loaded now, because nothing can be loaded while a stream is captured.
  load(KernelKind::kPlan, *device);
  load(KernelKind::kAttendDecode, *device);
  if (step->serves(Step::kPrefill)) load(KernelKind::kAttendPrefill, *device);
  if (step->cascade() != nullptr)
    for (const KernelKind kind :
         {KernelKind::kShare, KernelKind::kAttendShared, KernelKind::kCombineShared})
      load(kind, *device);
  if (step->rotates())
    for (const KernelKind kind :
         {KernelKind::kPlanRotation, KernelKind::kRotateKeys, KernelKind::kAttendRotated})
      load(kind, *device);
  if (spec_.page_mass)
    for (const KernelKind kind : {KernelKind::kPlanPageMass, KernelKind::kSumPageMass})
      load(kind, *device);
  return step;
}

std::unique_ptr<AppendStep> Attention::make_append_step(std::shared_ptr<const Device> device,
                                                        PoolFormat format,
                                                        AppendCapacity capacity) const {
  check_arch(arch_, *device);
  load(KernelKind::kPlanAppend, *device);
  load(KernelKind::kAppend, *device);
  return std::make_unique<AppendStep>(std::move(device), shared_kernel(KernelKind::kPlanAppend),
                                      format, capacity);
}

void Attention::check_query(const char* name, const TensorView& t, int heads, int bytes,
                            const Device& device) const {
  check_type(name, t, element_type(spec_.dtype));
  check_rank(name, t, 3, "[tokens, heads, head_dim]");
  check_on_device(name, t, device);
  check_extent(name, t, 1, heads, "heads");
  check_extent(name, t, 2, spec_.head_dim, "head_dim");
  check_rows(name, t, kElementBytes, bytes);
}

void Attention::check_lse(const AttendTensors& t, const Device& device) const {
  if (!t.lse) return;
  check_type("lse", *t.lse, ElementType::kFp32);
  check_rank("lse", *t.lse, 2, "[tokens, heads]");
  check_on_device("lse", *t.lse, device);
  check_extent("lse", *t.lse, 0, t.q.shape[0], "tokens, as q");
  check_extent("lse", *t.lse, 1, spec_.num_q_heads, "heads");
  check_alignment("lse", *t.lse, kFloatBytes);
}

void Attention::check_page_mass(const AttendTensors& t, const Step& step) const {
  if (!t.page_mass) return;
  if (!spec_.page_mass)
    throw SpecError("page_mass is given; the spec has none (page_mass=True makes calls give it)");
  if (!step.page_mass().has_room())
    throw SpecError(
        "page_mass is given; the step has no room for the masses: plan it with a capacity whose "
        "mass_pages is the sum over the requests of query tokens times pages of 16 slots");
  check_type("page_mass", *t.page_mass, ElementType::kFp32);
  check_rank("page_mass", *t.page_mass, 1, "[pages of 16 slots]");
  check_on_device("page_mass", *t.page_mass, *step.device());
  check_rows("page_mass", *t.page_mass, kFloatBytes, kFloatBytes);
  check_own_memory("page_mass", *t.page_mass, t, step);
  check_no_overlap("page_mass", *t.page_mass, "out", t.out);
  if (t.lse) check_no_overlap("page_mass", *t.page_mass, "lse", *t.lse);
}

void Attention::check_own_memory(const char* name, const TensorView& output, const AttendTensors& t,
                                 const Step& step) {
  check_no_internal_overlap(name, output);
  check_no_overlap(name, output, "q", t.q);
  check_no_overlap(name, output, "k_pool", t.pool.keys);
  check_no_overlap(name, output, "v_pool", t.pool.values);
  check_no_overlap(name, output, "k_scale", t.pool.key_scale);
  check_no_overlap(name, output, "v_scale", t.pool.value_scale);
  check_no_overlap(name, output, "key_bias", t.pool.key_bias);
  check_no_overlap(name, output, "entry_lse", t.pool.entry_lse);
  check_no_overlap(name, output, "sinks", t.sinks);
  if (step.pages() != nullptr) check_no_overlap(name, output, "the step's pages", *step.pages());
}

void Attention::check_sinks(const std::optional<TensorView>& sinks, const Device& device) const {
  if (spec_.sinks && !sinks)
    throw SpecError("the spec has sinks; give sinks=, a logit of each query head");
  if (!spec_.sinks && sinks)
    throw SpecError("sinks are given; the spec has none (sinks=True makes it take them)");
  if (!sinks) return;
  check_type("sinks", *sinks, ElementType::kFp32);
  check_rank("sinks", *sinks, 1, "[heads]");
  check_on_device("sinks", *sinks, device);
  check_extent("sinks", *sinks, 0, spec_.num_q_heads, "heads");
  check_rows("sinks", *sinks, kFloatBytes, kFloatBytes);
}

void Attention::check_attend(const AttendTensors& t, const Step& step) const {
  const Device& device = *step.device();
  check_step(step);
  check_query("q", t.q, spec_.num_q_heads, kChunkBytes, device);
  check_query("out", t.out, spec_.num_q_heads, kChunkBytes, device);
  check_extent("out", t.out, 0, t.q.shape[0], "tokens, as q");
  if (t.q.shape[0] < step.num_tokens())
    throw SpecError(
        fmt::format("q has {} tokens; the step has {}", t.q.shape[0], step.num_tokens()));
  check_pool(spec_, t.pool, step.format(), device);
  check_key_bias(spec_, t.pool, step.format(), device);
  check_entry_lse(spec_, t.pool, step.format(), device);
  check_lse(t, device);
  check_sinks(t.sinks, device);
  check_own_memory("out", t.out, t, step);
  check_page_mass(t, step);
  if (!t.lse) return;
  check_own_memory("lse", *t.lse, t, step);
  check_no_overlap("lse", *t.lse, "out", t.out);
}

Attention::LaunchParams Attention::attend_params(const AttendTensors& t, const Step& step) const {
  LaunchParams params{};
  params.q = tokens_of(t.q);
  params.pool = pool_params(spec_, t.pool, step.format());
  params.key_bias = key_bias_params(t.pool);
  params.out = {t.out.data, t.out.strides[0] * kElementBytes, t.out.strides[1] * kElementBytes};
  if (t.lse)
    params.lse = {static_cast<float*>(t.lse->data), t.lse->strides[0] * kFloatBytes,
                  t.lse->strides[1] * kFloatBytes};
  if (t.page_mass) {
    const StepPageMass& page_mass = step.page_mass();
    params.page_mass = page_mass.view;
    if (!t.lse)
      params.lse = {page_mass.lse, spec_.num_q_heads * std::int64_t{kFloatBytes}, kFloatBytes};
  }
  if (t.sinks) params.sinks = static_cast<const float*>(t.sinks->data);
  if (spec_.states) params.entry_lse = entry_lse_params(t.pool);
  params.step = step.view();
  if (const CascadeParams* cascade = step.cascade()) {
    params.cascade = cascade->view;
    params.shared_slot_bytes = cascade->slot_bytes;
  }
  params.scale_log2 = static_cast<float>(spec_.softmax_scale() * std::numbers::log2e);
  return params;
}

void Attention::launch_kernel(KernelKind kind, const TileConfig& tile, const LaunchParams& params,
                              std::int64_t pages, int page_size, const Device& device,
                              Stream stream, AccessedMemoryFn accessed_memory) const {
  const auto launch = [&](const void* parameters) {
    kernel(kind).on(device).launch(params.work.num_ctas, parameters, stream, accessed_memory);
  };
  if (tile.family != Family::kSm90a) return launch(&params);
  BiasedParams<TmaAttendParams> with_maps;
  with_maps.attend = params;
  const AttentionSpec& of_pool = kind == KernelKind::kAttendRotated ? scratch_spec_ : spec_;
  with_maps.maps = pool_maps_.get(of_pool, params.pool, pages, page_size, tile.heads, device);
  with_maps.key_bias = params.key_bias;
  launch(&with_maps);
}

void Attention::attend_rotated(LaunchParams params, const Step& step, Stream stream,
                               AccessedMemoryFn accessed_memory) const {
  constexpr int kCtasPerSm = 2 * kRotateKeysCtasPerSm;  // more would only wait for these
  const Device& device = *step.device();
  const StepRotation& rotation = step.rotation();
  RotateKeysParams keys = rotation.keys;
  keys.pool = params.pool;
  const int max_runs = rotation.runs.max_runs;
  const std::int64_t ctas = std::int64_t{max_runs} * spec_.num_kv_heads;
  kernel(KernelKind::kRotateKeys)
      .on(device)
      .launch(static_cast<int>(std::min(ctas, std::int64_t{kCtasPerSm} * device.sm_count())), &keys,
              stream, accessed_memory);
  keys.scratch.key_scales = params.pool.key_scales;
  keys.scratch.value_scales = params.pool.value_scales;
  keys.scratch.key_scale_stride = params.pool.key_scale_stride;
  keys.scratch.value_scale_stride = params.pool.value_scale_stride;
  params.pool = keys.scratch;
  params.step = rotation.plan.step;
  params.work = rotation.plan.phase[0].work;
  launch_kernel(KernelKind::kAttendRotated, rotated_config_.value().prefill, params, max_runs,
                kRunSlots, device, stream, accessed_memory);
}

void Attention::sum_page_mass(const AttendParams& params, const TensorView& page_mass,
                              const Step& step, Stream stream,
                              AccessedMemoryFn accessed_memory) const {
  const PlanPageMassParams& plan = step.page_mass().plan;
  const int max_runs = static_cast<int>(std::min<std::int64_t>(page_mass.shape[0], kMaxTokenRuns));
  if (max_runs == 0) return;
  const SumPageMassParams sum = {plan.header,
                                 plan.requests,
                                 params.page_mass.terms,
                                 params.lse,
                                 static_cast<float*>(page_mass.data),
                                 max_runs,
                                 plan.num_heads};
  const Device& device = *step.device();
  const int ctas =
      std::min((max_runs + kSumRuns - 1) / kSumRuns, device.sm_count() * kSumPageMassCtasPerSm);
  kernel(KernelKind::kSumPageMass).on(device).launch(ctas, &sum, stream, accessed_memory);
}

void Attention::launch_attend(const LaunchParams& params, const AttendTensors& t, const Step& step,
                              Stream stream) const {
  const Device& device = *step.device();
  const auto accessed_memory = [&] {
    AccessedMemory accessed;
    accessed.reads("q", t.q).reads_pool(t.pool).reads("sinks", t.sinks);
    accessed.writes("out", t.out).writes("lse", t.lse).writes("page_mass", t.page_mass);
    step.add_to(accessed);
    return accessed.ranges();
  };
  const auto launch = [&](const StepView& view, const WorkView& work, KernelKind kind,
                          const TileConfig& config) {
    LaunchParams with_work = params;
    with_work.step = view;
    with_work.work = work;
    launch_kernel(kind, config, with_work, t.pool.keys.shape[0], step.format().page_size, device,
                  stream, accessed_memory);
  };
  const auto launch_phase = [&](Step::Phase phase, KernelKind kind, const TileConfig& config) {
    if (step.serves(phase)) launch(step.view(), step.work(phase), kind, config);
  };
  // A kernel that is still being compiled (DeferredKernel) is awaited before a launch begins.
  if (step.serves(Step::kPrefill)) (void)kernel(KernelKind::kAttendPrefill);
  if (step.rotates()) (void)kernel(KernelKind::kAttendRotated);
  step.memory().run([&] {
    if (step.rotates()) attend_rotated(params, step, stream, accessed_memory);
    launch_phase(Step::kPrefill, KernelKind::kAttendPrefill, config_.prefill);
    launch_phase(Step::kDecode, KernelKind::kAttendDecode, config_.decode);
    if (t.page_mass) sum_page_mass(params, *t.page_mass, step, stream, accessed_memory);
    const CascadeParams* cascade = step.cascade();
    if (cascade == nullptr) return;
    launch(cascade->plan.step, cascade->plan.phase[0].work, KernelKind::kAttendShared,
           config_.prefill);
    const CombineSharedParams combine = {params.out,
                                         params.lse,
                                         params.pool,
                                         cascade->view,
                                         cascade->share.shared.counts,
                                         cascade->share.sharing_tokens,
                                         cascade->slot_bytes,
                                         spec_.num_kv_heads};
    kernel(KernelKind::kCombineShared)
        .on(device)
        .launch(device.sm_count() * kCombineSharedCtasPerSm, &combine, stream, accessed_memory);
  });
}

void Attention::attend(const TensorView& q, const PoolTensors& pool, const Step& step,
                       const TensorView& out, const std::optional<TensorView>& lse, Stream stream,
                       const std::optional<TensorView>& sinks,
                       const std::optional<TensorView>& page_mass) const {
  TraceSpan span("attend");
  span.with("q", q).with("k_pool", pool.keys);
  const AttendTensors tensors = {q, pool, out, lse, sinks, page_mass};
  check_attend(tensors, step);
  launch_attend(attend_params(tensors, step), tensors, step, stream);
}

void Attention::check_append(const TensorView& k, const TensorView& v, const PoolTensors& pool,
                             const AppendStep& step) const {
  const Device& device = *step.device();
  check_arch(arch_, device);
  check_query("k", k, spec_.num_kv_heads, kNewChunkBytes, device);
  check_query("v", v, spec_.num_kv_heads, kNewChunkBytes, device);
  check_extent("v", v, 0, k.shape[0], "tokens, as k");
  check_within_capacity("tokens to append", k.shape[0], step.capacity());
  if (!step.is_filled()) throw SpecError("the append step has no tokens yet; call its update()");
  check_writable_pool(spec_, pool, step.format(), device);
  for (const auto& [name, rows] : {std::pair("k", &k), std::pair("v", &v)}) {
    check_no_overlap("k_pool", pool.keys, name, *rows);
    check_no_overlap("v_pool", pool.values, name, *rows);
  }
}

void Attention::append(const TensorView& k, const TensorView& v, const PoolTensors& pool,
                       const AppendStep& step, Stream stream) const {
  TraceSpan span("append");
  span.with("k", k).with("k_pool", pool.keys);
  check_append(k, v, pool, step);
  if (k.shape[0] == 0) return;
  AppendParams params{};
  params.records = step.records();
  params.num_tokens = static_cast<int32>(k.shape[0]);
  params.num_kv_heads = spec_.num_kv_heads;
  params.k = tokens_of(k);
  params.v = tokens_of(v);
  params.pool = pool_params(spec_, pool, step.format());
  const auto accessed_memory = [&] {
    return AccessedMemory()
        .reads("k", k)
        .reads("v", v)
        .writes_pool(pool)
        .writes("the append step", step.memory())
        .ranges();
  };
  launch_over_tokens(kernel(KernelKind::kAppend), spec_, k.shape[0], &params, *step.device(),
                     stream, accessed_memory);
}

}  // namespace lazyrope
