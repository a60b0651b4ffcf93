#include "runtime/tuning/autotune.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "codegen/config_variants.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/trace.h"
#include "runtime/base/version.h"
#include "runtime/engine/kernel_set.h"
#include "runtime/tuning/tuning_benchmark.h"

namespace lazyrope {
namespace {

using SteadyClock = std::chrono::steady_clock;
using TuningCandidates = std::vector<TuningCandidate>;

constexpr std::int64_t kMaxPoolBytes = std::int64_t{3} << 30;
// Each workload is measured twice for the config of its kernel and twice for min_split_blocks.
constexpr int kMeasurements = 4;

double seconds_since(SteadyClock::time_point begin) {
  return std::chrono::duration<double>(SteadyClock::now() - begin).count();
}

std::string now_utc() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

std::string text_of(const TileConfig& config) {
  return fmt::format("{}, products of {} keys", describe(config), config.mma_n);
}

class Autotuner {
 public:
  Autotuner(const Engine& engine, AttentionSpec spec, std::shared_ptr<const Device> device,
            const AutotuneOptions& options)
      : device_(std::move(device)),
        spec_(std::move(spec)),
        options_(options),
        // The memory cache of this engine ends with the tuning, so the kernels of all candidates
        // are freed. The disk cache keeps them.
        engine_(engine.config()) {}

  Tuning run() {
    begin_ = SteadyClock::now();
    report(fmt::format("{}: the default config", describe(kernel_spec())));
    baseline_ = compile_default();
    tuning_.config = baseline_->config();
    make_cases();
    tune_kernels();
    tune_splitting();
    return finished();
  }

 private:
  using Cases = std::vector<const TuningCase*>;

  const Arch& arch() const { return device_->arch(); }
  KernelSpec kernel_spec() const { return spec_.kernel_spec(); }

  void report(const std::string& what) const {
    log_message(LogLevel::kInfo, "tuning: {}", what);
    options_.progress(what);
  }

  void make_cases() {
    report("random keys and values");
    const auto budget =
        std::min(kMaxPoolBytes, static_cast<std::int64_t>(device_->free_bytes() / 2));
    std::vector<TuningWorkload> workloads = options_.workloads;
    for (TuningWorkload& workload : workloads)
      workload = fitted(workload, spec_, budget / 2 / token_bytes(spec_));
    pool_ = std::make_unique<TuningPool>(device_, spec_, workloads);
    for (const TuningWorkload& workload : workloads) {
      cases_.push_back(std::make_unique<TuningCase>(device_, spec_, workload, *pool_));
      // A step assigns requests to kernels by the same rule.
      const int rows = workload.query_tokens * spec_.group_size();
      (rows <= baseline_->config().decode.rows_per_head() ? decode_cases_ : prefill_cases_)
          .push_back(cases_.back().get());
      all_cases_.push_back(cases_.back().get());
    }
  }

  // A kernel without a workload keeps its config.
  void tune_kernels() {
    const KernelConfig baseline = baseline_->config();
    TuningCandidates decode;
    TuningCandidates prefill;
    if (!decode_cases_.empty())
      for (const KernelConfig& config : decode_variants(baseline, kernel_spec(), arch()))
        decode.push_back({{.name = text_of(config.decode), .config = config}});
    if (!prefill_cases_.empty())
      for (const KernelConfig& config : prefill_variants(baseline, kernel_spec(), arch()))
        prefill.push_back({{.name = text_of(config.prefill), .config = config}});
    compile({&decode, &prefill});
    if (!decode.empty()) tuning_.config.decode = chosen("decode", decode_cases_, decode).decode;
    if (!prefill.empty())
      tuning_.config.prefill = chosen("prefill", prefill_cases_, prefill).prefill;
  }

  void tune_splitting() {
    TuningCandidates candidates;
    for (const KernelConfig& config : split_variants(tuning_.config))
      candidates.push_back(
          {{.name = fmt::format("splits of {} blocks or more", config.min_split_blocks),
            .config = config}});
    compile({&candidates});
    tuning_.config = chosen("min_split_blocks", all_cases_, candidates);
    tuning_.compiler = candidates.front().attention->compiler();
  }

  KernelSetRequest request(std::string name, const std::optional<KernelConfig>& config = {}) const {
    KernelSetRequest request = attention_set(spec_, arch(), config);
    request.name = std::move(name);
    return request;
  }

  std::shared_ptr<const Attention> compile_default() {
    const auto sets = compile_sets(engine_, {request("default config")}, options_.engine);
    return Attention::of(spec_, arch(), sets.front());
  }

  void compile(const std::vector<TuningCandidates*>& groups) {
    const auto begin = SteadyClock::now();
    std::vector<TuningCandidate*> all;
    std::vector<KernelSetRequest> requests;
    for (TuningCandidates* group : groups) {
      for (TuningCandidate& candidate : *group) {
        all.push_back(&candidate);
        requests.push_back(request(candidate.trial.name, candidate.trial.config));
      }
    }
    report(fmt::format("compiling {} configs", all.size()));
    const std::vector<KernelSet> sets = compile_sets(engine_, requests, options_.engine);
    for (std::size_t i = 0; i < all.size(); ++i) set_attention(*all[i], sets[i]);
    tuning_.compile_seconds += seconds_since(begin);
  }

  void set_attention(TuningCandidate& candidate, const KernelSet& set) const {
    try {
      candidate.attention = Attention::of(spec_, arch(), set);
    } catch (const SpillError&) {
      candidate.trial.rejection = "spills registers";
    } catch (const CompileError& error) {
      candidate.reject(error.what());
    }
  }

  KernelConfig chosen(const char* name, const Cases& cases, TuningCandidates& candidates) {
    const auto begin = SteadyClock::now();
    TuningBenchmark benchmark(
        device_, options_.seconds / kMeasurements / static_cast<double>(all_cases_.size()),
        options_.seed, [this](const std::string& what) { report(what); });
    TuningTask task = {.name = name, .workloads = {}, .trials = {}};
    task.chosen = benchmark.run(name, cases, candidates);
    for (const TuningCase* c : cases) task.workloads.push_back(c->workload());
    for (const TuningCandidate& candidate : candidates) task.trials.push_back(candidate.trial);
    tuning_.tasks.push_back(task);
    tuning_.measure_seconds += seconds_since(begin);
    return task.trials[task.chosen].config;
  }

  Tuning finished() {
    tuning_.spec = fmt::format("{}, {} KV heads", describe(kernel_spec()), spec_.num_kv_heads);
    tuning_.arch = arch().name;
    tuning_.gpu = device_->name();
    tuning_.sm_count = device_->sm_count();
    tuning_.driver = device_->driver();
    tuning_.library = version();
    tuning_.date = now_utc();
    tuning_.seconds = seconds_since(begin_);
    return tuning_;
  }

  std::shared_ptr<const Device> device_;
  AttentionSpec spec_;
  const AutotuneOptions& options_;
  Engine engine_;
  SteadyClock::time_point begin_;
  Tuning tuning_;
  std::shared_ptr<const Attention> baseline_;
  std::unique_ptr<TuningPool> pool_;
  std::vector<std::unique_ptr<TuningCase>> cases_;
  Cases decode_cases_;
  Cases prefill_cases_;
  Cases all_cases_;
};

}  // namespace

Tuning autotune(const Engine& engine, const AttentionSpec& spec,
                const std::shared_ptr<const Device>& device, const AutotuneOptions& options) {
  validate(spec);
  TraceSpan span("autotune");
  span.with("spec", [&] { return describe(spec.kernel_spec()); }).with("device", device->name());
  return Autotuner(engine, spec, device, options).run();
}

}  // namespace lazyrope
