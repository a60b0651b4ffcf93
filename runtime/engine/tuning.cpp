#include "runtime/engine/tuning.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cache/error.h"

namespace lazyrope {

// nlohmann::json finds these converters by argument-dependent look-up in this namespace.
NLOHMANN_JSON_SERIALIZE_ENUM(Family, {{Family::kSm80, "sm80"}, {Family::kSm90a, "sm90a"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TileConfig, warps_m, warps_n, warp_m, warp_n, mma_n, stages,
                                   ctas_per_sm, family, heads)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(KernelConfig, decode, prefill, min_split_blocks,
                                   heads_per_work_tile, fixed_split_blocks, share_above_kib,
                                   equal_splits)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TuningWorkload, batch, query_tokens, context, doc_tokens)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TuningTrial, name, config, us, gain, noise, rejection)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TuningTask, name, workloads, trials, chosen)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Tuning, spec, arch, gpu, sm_count, driver, compiler, library,
                                   date, config, tasks, compile_seconds, measure_seconds, seconds)

namespace {

std::string line(const TuningTask& task) {
  const TuningTrial& chosen = task.trials.at(task.chosen);
  if (task.chosen == 0)
    return fmt::format("{}: of {} configs the default stays: {}", task.name, task.trials.size(),
                       chosen.name);
  return fmt::format(
      "{}: of {} configs one takes {:.1f}% less time than the default (noise {:.1f}%): {}",
      task.name, task.trials.size(), 100 * chosen.gain, 100 * chosen.noise, chosen.name);
}

}  // namespace

std::string describe(const TuningWorkload& workload) {
  return fmt::format("{} x {} over {}", workload.batch, workload.query_tokens, workload.context);
}

nlohmann::json json_of(const Tuning& tuning) { return tuning; }

Tuning tuning_of(const nlohmann::json& json) {
  try {
    auto tuning = json.get<Tuning>();
    for (const TuningTask& task : tuning.tasks)
      if (task.chosen >= task.trials.size())
        throw CacheError("the tuning record's chosen config is not among its trials");
    return tuning;
  } catch (const nlohmann::json::exception& error) {
    throw CacheError(fmt::format("the tuning record is incomplete: {}", error.what()));
  }
}

std::string summary(const Tuning& tuning) {
  std::string text;
  for (const TuningTask& task : tuning.tasks) text += line(task) + "\n";
  return fmt::format("{}in {:.1f} s: compiling {:.1f} s, measuring {:.1f} s", text, tuning.seconds,
                     tuning.compile_seconds, tuning.measure_seconds);
}

}  // namespace lazyrope
