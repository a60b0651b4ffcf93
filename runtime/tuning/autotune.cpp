#include "runtime/tuning/autotune.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <ctime>
#include <utility>

#include "codegen/plan_variants.h"
#include "runtime/base/error.h"
#include "runtime/base/log.h"
#include "runtime/base/version.h"
#include "runtime/engine/kernel_set.h"
#include "runtime/tuning/tuning_contest.h"

namespace lazyrope {
namespace {

using Clock = std::chrono::steady_clock;
using Contenders = std::vector<Contender>;

constexpr std::int64_t kMostPoolBytes = std::int64_t{3} << 30;
// How often a workload is measured: for its kernel and for the division of work, twice each.
constexpr int kMeasurements = 4;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::string now_utc() {
  const std::time_t now = std::chrono::system_clock::to_time_t(std::chrono::system_clock::now());
  return fmt::format("{:%Y-%m-%dT%H:%M:%SZ}", fmt::gmtime(now));
}

std::string text_of(const AttendPlan& plan) {
  return fmt::format("{}, products of {} keys", describe(plan), plan.step_keys);
}

class Autotuner {
 public:
  Autotuner(const Engine& engine, AttentionSpec spec, std::shared_ptr<const Device> device,
            const AutotuneOptions& options)
      : device_(std::move(device)),
        spec_(std::move(spec)),
        options_(options),
        // What loses is forgotten with this engine; the disk keeps it.
        engine_(engine.config()) {}

  Tuning run() {
    begin_ = Clock::now();
    say(fmt::format("{}: the default plan", describe(kernel_spec())));
    usual_ = compile_default();
    tuning_.plan = usual_->plan();
    make_cases();
    tune_kernels();
    tune_splitting();
    return finished();
  }

 private:
  using Cases = std::vector<const TuningCase*>;

  const Arch& arch() const { return device_->arch(); }
  KernelSpec kernel_spec() const { return spec_.kernel_spec(); }

  void say(const std::string& what) const {
    log_message(LogLevel::kInfo, "tuning: {}", what);
    options_.progress(what);
  }

  void make_cases() {
    say("random keys and values");
    const auto budget =
        std::min(kMostPoolBytes, static_cast<std::int64_t>(device_->free_bytes() / 2));
    std::vector<TuningWorkload> workloads = options_.workloads;
    for (TuningWorkload& workload : workloads)
      workload = fitted(workload, spec_, budget / 2 / token_bytes(spec_));
    pool_ = std::make_unique<TuningPool>(device_, spec_, workloads);
    for (const TuningWorkload& workload : workloads) {
      cases_.push_back(std::make_unique<TuningCase>(device_, spec_, workload, *pool_));
      // As the step decides it.
      const int rows = workload.query_tokens * spec_.group_size();
      (rows <= usual_->plan().decode.head_rows() ? decode_cases_ : prefill_cases_)
          .push_back(cases_.back().get());
      all_cases_.push_back(cases_.back().get());
    }
  }

  // A kernel without a workload keeps its plan.
  void tune_kernels() {
    const TilePlan usual = usual_->plan();
    Contenders decode;
    Contenders prefill;
    if (!decode_cases_.empty())
      for (const TilePlan& plan : decode_variants(usual, kernel_spec(), arch()))
        decode.push_back({{.name = text_of(plan.decode), .plan = plan}});
    if (!prefill_cases_.empty())
      for (const TilePlan& plan : prefill_variants(usual, kernel_spec(), arch()))
        prefill.push_back({{.name = text_of(plan.prefill), .plan = plan}});
    compile({&decode, &prefill});
    if (!decode.empty()) tuning_.plan.decode = chosen("decode", decode_cases_, decode).decode;
    if (!prefill.empty()) tuning_.plan.prefill = chosen("prefill", prefill_cases_, prefill).prefill;
  }

  void tune_splitting() {
    Contenders contenders;
    for (const TilePlan& plan : split_variants(tuning_.plan))
      contenders.push_back(
          {{.name = fmt::format("parts of {} blocks or more", plan.min_split_blocks),
            .plan = plan}});
    compile({&contenders});
    tuning_.plan = chosen("min_split_blocks", all_cases_, contenders);
    tuning_.compiler = contenders.front().attention->compiler();
  }

  KernelSetRequest request(std::string name, const std::optional<TilePlan>& plan = {}) const {
    KernelSetRequest request = attention_set(spec_, arch(), plan);
    request.name = std::move(name);
    return request;
  }

  std::shared_ptr<const Attention> compile_default() {
    const auto sets = compile_sets(engine_, {request("default plan")}, options_.engine);
    return Attention::of(spec_, arch(), sets.front());
  }

  void compile(const std::vector<Contenders*>& groups) {
    const auto begin = Clock::now();
    std::vector<Contender*> all;
    std::vector<KernelSetRequest> requests;
    for (Contenders* group : groups) {
      for (Contender& contender : *group) {
        all.push_back(&contender);
        requests.push_back(request(contender.trial.name, contender.trial.plan));
      }
    }
    say(fmt::format("compiling {} plans", all.size()));
    const std::vector<KernelSet> sets = compile_sets(engine_, requests, options_.engine);
    for (std::size_t i = 0; i < all.size(); ++i) take(*all[i], sets[i]);
    tuning_.compile_seconds += seconds_since(begin);
  }

  void take(Contender& contender, const KernelSet& set) const {
    try {
      contender.attention = Attention::of(spec_, arch(), set);
    } catch (const SpillError&) {
      contender.trial.left_out = "spills registers";
    } catch (const CompileError& error) {
      contender.reject(error.what());
    }
  }

  TilePlan chosen(const char* name, const Cases& cases, Contenders& contenders) {
    const auto begin = Clock::now();
    TuningContest contest(device_,
                          options_.seconds / kMeasurements / static_cast<double>(all_cases_.size()),
                          options_.seed, [this](const std::string& what) { say(what); });
    TuningPart part = {.name = name, .workloads = {}, .trials = {}};
    part.chosen = contest.run(name, cases, contenders);
    for (const TuningCase* c : cases) part.workloads.push_back(c->workload());
    for (const Contender& contender : contenders) part.trials.push_back(contender.trial);
    tuning_.parts.push_back(part);
    tuning_.measure_seconds += seconds_since(begin);
    return part.trials[part.chosen].plan;
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
  Clock::time_point begin_;
  Tuning tuning_;
  std::shared_ptr<const Attention> usual_;
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
  return Autotuner(engine, spec, device, options).run();
}

}  // namespace lazyrope
