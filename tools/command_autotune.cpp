#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/base/table.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/tuning.h"
#include "runtime/tuning/tuned.h"
#include "tools/command.h"
#include "tools/common_options.h"
#include "tools/output.h"
#include "tools/progress.h"
#include "tools/spec_options.h"

namespace lazyrope {
namespace {

constexpr const char* kAutotuneFooter =
    R"(Run this on the deployment GPU while nothing else uses it. Tuning one attention takes about
ten seconds and up to 3 GiB of GPU memory. The result is stored in the cache for this GPU model,
driver and compiler; lazyrope.compile(spec) then uses it in every process. An attention that has a
stored result is not tuned again without --force.

The command compiles configs close to the default and compares their results with the default's.
It times them interleaved, with CUDA events and a cold L2, and takes medians. The fastest configs
and the default are then timed again. A config replaces the default only if the time that it saves
is more than 1% and more than three standard errors. It must not be slower than the default by such
a margin on any workload.

The table has one row per task (decode, prefill, min_split_blocks): microseconds of the default and
of the chosen config on each workload (batch x query tokens over context), the percentage of time
saved, and three standard errors of that percentage (noise).
--json prints an object: cache, seconds, attentions [{model, is_new, tuning}]; a tuning has all
configs.
Exit codes: 0 done, 1 failed, 2 wrong usage.

Example:
  lazyrope autotune --model Llama-3.1-8B/config.json)";

constexpr double kMaxSeconds = 3600;

struct AutotuneCommandOptions {
  SpecOptions spec;
  std::string cache;
  int threads = 0;
  double seconds = AutotuneOptions{}.seconds;
  bool force = false;
  bool json = false;
};

struct TunedRow {
  std::string model;
  bool is_new;
  std::shared_ptr<const Tuning> tuning;
};

TunedRow tune_one(Engine& engine, const NamedSpec& named,
                  const std::shared_ptr<const Device>& device,
                  const AutotuneCommandOptions& options, Progress& progress) {
  const EngineOptions engine_options = {.threads = options.threads, .listener = &progress};
  if (!options.force)
    if (const auto known = stored_attention(engine, named.spec, *device, engine_options))
      return {named.name, false, known->tuning()};
  const AutotuneOptions how = {
      .engine = engine_options, .seconds = options.seconds, .progress = [&](std::string_view what) {
        progress.set_status(fmt::format("{}: {}", named.name, what));
      }};
  return {named.name, true, tuned_attention(engine, named.spec, device, how)->tuning()};
}

std::vector<TunedRow> tune_all(Engine& engine, const AutotuneCommandOptions& options) {
  const std::vector<NamedSpec> specs = specs_of(options.spec);
  const std::shared_ptr<const Device> device = gpu_to_tune_on("");
  Progress progress;
  std::vector<TunedRow> rows;
  rows.reserve(specs.size());
  for (const NamedSpec& named : specs)
    rows.push_back(checked_as_options(
        options.spec, [&] { return tune_one(engine, named, device, options, progress); }));
  return rows;
}

std::string times_text(const TuningTrial& trial) {
  std::vector<std::string> times;
  times.reserve(trial.us.size());
  for (const double us : trial.us) times.push_back(fmt::format("{:.1f}", us));
  return fmt::format("{}", fmt::join(times, ", "));
}

void add_task(const TunedRow& row, const TuningTask& task, Table& table) {
  const TuningTrial& baseline = task.trials.front();
  const TuningTrial& chosen = task.trials.at(task.chosen);
  const bool stays = task.chosen == 0;
  std::vector<std::string> workloads;
  workloads.reserve(task.workloads.size());
  for (const TuningWorkload& workload : task.workloads) workloads.push_back(describe(workload));
  table.add({row.model, task.name, fmt::to_string(task.trials.size()),
             fmt::format("{}", fmt::join(workloads, ", ")), times_text(baseline),
             stays ? "" : times_text(chosen),
             stays ? "" : fmt::format("{:.1f}%", 100 * chosen.gain),
             stays ? "" : fmt::format("{:.1f}%", 100 * chosen.noise),
             stays ? "the default stays" : chosen.name});
}

std::string text_of(const std::vector<TunedRow>& rows, const std::string& cache_dir,
                    double seconds) {
  Table table({{"model"},
               {"task"},
               {"configs", Align::kRight},
               {"workloads"},
               {"default us"},
               {"chosen us"},
               {"saved", Align::kRight},
               {"noise", Align::kRight},
               {"chosen"}});
  std::string text;
  for (const TunedRow& row : rows) {
    const Tuning& tuning = *row.tuning;
    text += fmt::format(
        "{}: {}\n  {} in {:.1f} s (compiling {:.1f} s, measuring {:.1f} s) on {}, {} SMs, driver "
        "{}, {}\n",
        row.model, tuning.spec, row.is_new ? "tuned" : "was tuned on " + tuning.date,
        tuning.seconds, tuning.compile_seconds, tuning.measure_seconds, tuning.gpu, tuning.sm_count,
        tuning.driver, tuning.compiler);
    for (const TuningTask& task : tuning.tasks) add_task(row, task, table);
  }
  return fmt::format("{}\n{}\n{} attentions in {:.1f} s; cache: {}\n", text, table.text(),
                     rows.size(), seconds, cache_dir.empty() ? "none" : cache_dir);
}

int run_autotune(const AutotuneCommandOptions& options) {
  const auto begin = std::chrono::steady_clock::now();
  Engine engine(config_with_cache(options.cache));
  const std::vector<TunedRow> rows = tune_all(engine, options);
  const std::chrono::duration<double> elapsed = std::chrono::steady_clock::now() - begin;
  const std::string& cache_dir = engine.config().cache_dir;
  if (!options.json) {
    print(text_of(rows, cache_dir, elapsed.count()));
    return 0;
  }
  OrderedJson attentions = OrderedJson::array();
  for (const TunedRow& row : rows)
    attentions.push_back({{"model", row.model},
                          {"is_new", row.is_new},
                          {"tuning", OrderedJson(json_of(*row.tuning))}});
  print(
      json_text({{"cache", cache_dir}, {"seconds", elapsed.count()}, {"attentions", attentions}}));
  return 0;
}

}  // namespace

Command autotune_command(CLI::App& root) {
  const auto options = std::make_shared<AutotuneCommandOptions>();
  CLI::App* const app =
      root.add_subcommand("autotune", "Choose the fastest kernels for models on this GPU");
  app->footer(kAutotuneFooter);
  add_cache_option(*app, options->cache);
  add_threads_option(*app, options->threads);
  app->add_option("--seconds", options->seconds,
                  fmt::format("Seconds that measuring one attention may take (default: {})",
                              options->seconds))
      ->option_text("S")
      ->check(CLI::Range(0.0, kMaxSeconds));
  app->add_flag("--force", options->force, "Tune again even if a result is stored");
  add_json_option(*app, options->json);
  add_spec_options(*app, options->spec);
  return {app, [options] { return run_autotune(*options); }};
}

}  // namespace lazyrope
