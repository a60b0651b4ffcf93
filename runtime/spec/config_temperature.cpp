#include "runtime/spec/config_temperature.h"

#include "runtime/spec/config_json.h"
#include "runtime/spec/config_rope.h"

namespace lazyrope {
namespace {

// A beta of 0 leaves all scores as they are.
std::optional<QueryTemperature> temperature(double beta, int interval, int offset) {
  if (beta == 0.0) return {};
  return QueryTemperature{beta, interval, offset};
}

// The interval is the original context, which the config's own key replaces.
std::optional<QueryTemperature> temperature_of_rope(const Json& config, const ModelType& model,
                                                    LayerKind kind) {
  constexpr const char* kContext = "original_max_position_embeddings";
  const Json rope = rope_parameters_of(config, model, kind);
  const Json& context = config.contains(kContext) ? config : rope;
  return temperature(required<double>(rope, "llama_4_scaling_beta"),
                     required<int>(context, kContext), 0);
}

}  // namespace

std::optional<QueryTemperature> temperature_of_config(const Json& config, const ModelType& model,
                                                      LayerKind kind, bool has_rope) {
  switch (model.temperatures) {
    case Temperatures::kNone:
      return {};
    case Temperatures::kOfRope:
      return temperature_of_rope(config, model, kind);
    case Temperatures::kWithoutRope:
      if (has_rope || !flag(config, "attn_temperature_tuning")) return {};
      return temperature(required<double>(config, "attn_scale"),
                         required<int>(config, "floor_scale"), 1);
  }
  return {};
}

}  // namespace lazyrope
