#include "runtime/engine/tuning.h"

#include <fmt/format.h>

#include "cache/error.h"

namespace lazyrope {

// Found by their names.
NLOHMANN_JSON_SERIALIZE_ENUM(Family, {{Family::kSm80, "sm80"}, {Family::kSm90a, "sm90a"}})
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(AttendPlan, row_warps, key_warps, warp_rows, warp_keys,
                                   step_keys, stages, ctas_per_sm, family, heads)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TilePlan, decode, prefill, min_split_blocks, item_heads,
                                   fixed_split_blocks)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TuningWorkload, batch, query_tokens, context, doc_tokens)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TuningTrial, name, plan, us, gain, noise, left_out)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(TuningPart, name, workloads, trials, chosen)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE(Tuning, spec, arch, gpu, sm_count, driver, compiler, library,
                                   date, plan, parts, compile_seconds, measure_seconds, seconds)

namespace {

std::string line(const TuningPart& part) {
  const TuningTrial& chosen = part.trials.at(part.chosen);
  if (part.chosen == 0)
    return fmt::format("{}: of {} plans the default stays: {}", part.name, part.trials.size(),
                       chosen.name);
  return fmt::format(
      "{}: of {} plans one takes {:.1f}% less time than the default (noise {:.1f}%): {}", part.name,
      part.trials.size(), 100 * chosen.gain, 100 * chosen.noise, chosen.name);
}

}  // namespace

std::string describe(const TuningWorkload& workload) {
  return fmt::format("{} x {} over {}", workload.batch, workload.query_tokens, workload.context);
}

nlohmann::json json_of(const Tuning& tuning) { return tuning; }

Tuning tuning_of(const nlohmann::json& json) {
  try {
    auto tuning = json.get<Tuning>();
    for (const TuningPart& part : tuning.parts)
      if (part.chosen >= part.trials.size())
        throw CacheError("the tuning record has no plan where it says that one was chosen");
    return tuning;
  } catch (const nlohmann::json::exception& error) {
    throw CacheError(fmt::format("the tuning record is incomplete: {}", error.what()));
  }
}

std::string summary(const Tuning& tuning) {
  std::string text;
  for (const TuningPart& part : tuning.parts) text += line(part) + "\n";
  return fmt::format("{}in {:.1f} s: compiling {:.1f} s, measuring {:.1f} s", text, tuning.seconds,
                     tuning.compile_seconds, tuning.measure_seconds);
}

}  // namespace lazyrope
