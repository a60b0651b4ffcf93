#include "runtime/spec/hybrid_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>

namespace lazyrope::hybrid_layers {
namespace {

// Returns whether the list of the key holds the layer.
bool is_listed(const Json& config, const char* key, int layer) {
  const Json& list = config[key];
  if (!list.is_array() ||
      !std::ranges::all_of(list, [](const Json& entry) { return config_json::holds<int>(entry); }))
    refuse_config(fmt::format("{} = {}; a list of layers is expected", key, json_excerpt(list)));
  return std::ranges::find(list, Json(layer)) != list.end();
}

const char* kind_of_letter(char letter) {
  switch (letter) {
    case 'M':
      return "linear_attention";
    case 'E':
      return "moe";
    case '*':
      return "full_attention";
    case '-':
      return "mlp";
    default:
      return nullptr;
  }
}

Json kinds_of_letters(const std::string& letters) {
  Json kinds = Json::array();
  for (const char letter : letters) {
    const char* const kind = kind_of_letter(letter);
    if (kind == nullptr)
      refuse_config(fmt::format("hybrid_override_pattern = {}; its letters must be M, E, * and -",
                                json_excerpt(letters)));
    kinds.emplace_back(kind);
  }
  return kinds;
}

}  // namespace

bool every_fourth(const Json& config, int layer) {
  const int interval = optional<int>(config, "full_attention_interval").value_or(4);
  if (interval < 1)
    refuse_config(fmt::format("full_attention_interval = {}; it must be at least 1", interval));
  return (layer + 1) % interval == 0;
}

bool even(const Json& /*config*/, int layer) { return layer % 2 == 0; }

bool none(const Json& /*config*/, int /*layer*/) { return false; }

bool of_full_attn_idxs(const Json& config, int layer) {
  return !is_set(config, "full_attn_idxs") || is_listed(config, "full_attn_idxs", layer);
}

bool of_attn_layer_indices(const Json& config, int layer) {
  return is_set(config, "attn_layer_indices") && is_listed(config, "attn_layer_indices", layer);
}

bool of_period(const Json& config, int layer) {
  const int period = required<int>(config, "attn_layer_period");
  const int offset = required<int>(config, "attn_layer_offset");
  if (period < 1 || offset < 0 || offset >= period)
    refuse_config(fmt::format(
        "attn_layer_period = {} with attn_layer_offset = {}; the offset must be from 0 up to less "
        "than the period",
        period, offset));
  return layer % period == offset;
}

bool listed(const Json& /*config*/, int /*layer*/) {
  refuse_config("layer_types is missing: it says which layers have attention");
}

void read_pattern_of_nemotron_h(Json& config) {
  if (!is_set(config, "layer_types") && config.contains("hybrid_override_pattern"))
    config["layer_types"] =
        kinds_of_letters(required<std::string>(config, "hybrid_override_pattern"));
  config.erase("hybrid_override_pattern");
  if (!is_set(config, "layer_types"))
    config["layer_types"] = {"linear_attention", "moe", "full_attention", "mlp"};
  if (config["layer_types"].is_array()) config["num_hidden_layers"] = config["layer_types"].size();
}

}  // namespace lazyrope::hybrid_layers
