#include "runtime/spec/layer_kinds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <utility>

namespace lazyrope {
namespace {

constexpr int kMaxLayers = 10000;

// Returns true if transformers takes the kinds from layer_types. Other types may have the key, but
// only with the kinds that their layers have anyway.
bool reads_layer_types(const ModelType& type) {
  const bool has_rule = type.has_attention != nullptr;
  return has_rule ? type.reads_layer_types
                  : type.windows != Windows::kNone && type.windows != Windows::kAll;
}

// Returns 1 if the number is missing and all layers are the same.
int num_layers(const Json& config, const ModelType& type) {
  const bool are_same = type.has_attention == nullptr && !reads_layer_types(type);
  if (!is_set(config, "num_hidden_layers") && are_same && !is_set(config, "layer_types")) return 1;
  const int count = required<int>(config, "num_hidden_layers");
  if (count < 1 || count > kMaxLayers)
    refuse_config(fmt::format("num_hidden_layers = {}; allowed are 1 to {}", count, kMaxLayers));
  return count;
}

// Returns false for the layers of SmolLM3 without RoPE: those with 0 in no_rope_layers, or else
// every n-th layer.
bool is_rope_layer(const Json& config, int layer) {
  if (!is_set(config, "no_rope_layers")) {
    const int interval = required<int>(config, "no_rope_layer_interval");
    if (interval < 1)
      refuse_config(fmt::format("no_rope_layer_interval = {}; it must be at least 1", interval));
    return (layer + 1) % interval != 0;
  }
  const Json& list = config["no_rope_layers"];
  if (!list.is_array() || std::cmp_greater_equal(layer, list.size()))
    refuse_config(fmt::format("no_rope_layers = {} has no layer {}", json_excerpt(list), layer));
  const Json& entry = list[static_cast<std::size_t>(layer)];
  if (entry != 0 && entry != 1)
    refuse_config(fmt::format("no_rope_layers: layer {} is {}; known are: 0 (without RoPE), 1",
                              layer, json_excerpt(entry)));
  return entry == 1;
}

int window_period(const Json& config) {
  const int period = optional<int>(config, "sliding_window_pattern").value_or(4);
  if (period < 1)
    refuse_config(fmt::format("sliding_window_pattern = {}; it must be at least 1", period));
  return period;
}

// Returns whether the layer has the window if the config has no layer_types.
bool has_window_by_default(const Json& config, const ModelType& type, int layer) {
  const bool is_given = window_of(config, type).has_value();
  switch (type.windows) {
    case Windows::kNone:
    case Windows::kNoneByDefault:
      return false;
    case Windows::kAll:
    case Windows::kAllByDefault:
      return is_given;
    case Windows::kFromMaxWindowLayers:
      return is_given && layer >= required<int>(config, "max_window_layers");
    case Windows::kEvenBelowMaxWindowLayers:
      return is_given && layer % 2 == 0 && layer < required<int>(config, "max_window_layers");
    case Windows::kEven:
      return layer % 2 == 0;
    case Windows::kAllButEveryNth:
      return (layer + 1) % window_period(config) != 0;
    case Windows::kAllButFirstOfFour:
      return layer % 4 != 0;
    case Windows::kWithoutRope:
      return is_given && !is_rope_layer(config, layer);
    case Windows::kChunksWithRope:
      return is_rope_layer(config, layer);
  }
  return false;
}

LayerKind windowed_kind(const ModelType& type) {
  return type.windows == Windows::kChunksWithRope ? LayerKind::kChunked : LayerKind::kSliding;
}

LayerKind kind_by_default(const Json& config, const ModelType& type, int layer) {
  if (type.has_attention != nullptr && !type.has_attention(config, layer))
    return LayerKind::kNoAttention;
  return has_window_by_default(config, type, layer) ? windowed_kind(type) : LayerKind::kFull;
}

// The names of a type's kinds in layer_types.
std::vector<std::pair<std::string, LayerKind>> names_of_kinds(const ModelType& type) {
  std::vector<std::pair<std::string, LayerKind>> names = {{"full_attention", LayerKind::kFull}};
  const LayerKind windowed = windowed_kind(type);
  if (type.has_attention == nullptr)
    names.emplace_back(windowed == LayerKind::kChunked ? "chunked_attention" : "sliding_attention",
                       windowed);
  if (type.has_older_names) names.emplace_back("attention", LayerKind::kFull);
  for (const char* name : type.without_attention) names.emplace_back(name, LayerKind::kNoAttention);
  return names;
}

LayerKind kind_of_name(const Json& name, const ModelType& type, int layer) {
  const auto names = names_of_kinds(type);
  for (const auto& [known, kind] : names)
    if (name == known) return kind;
  std::vector<std::string> known;
  known.reserve(names.size());
  for (const auto& pair : names) known.push_back(pair.first);
  refuse_config(fmt::format("layer_types: layer {} is {}; known are: {}", layer, json_excerpt(name),
                            fmt::join(known, ", ")));
}

void check_layer_types(const Json& types, int num_layers) {
  if (!types.is_array() || std::cmp_not_equal(types.size(), num_layers))
    refuse_config(
        fmt::format("layer_types = {} with num_hidden_layers = {}; there must be a type "
                    "for each layer",
                    json_excerpt(types), num_layers));
}

LayerKind kind_of(const Json& config, const ModelType& type, int layer) {
  if (!is_set(config, "layer_types")) return kind_by_default(config, type, layer);
  const Json& name = config["layer_types"][static_cast<std::size_t>(layer)];
  const LayerKind kind = kind_of_name(name, type, layer);
  if (reads_layer_types(type) || kind == kind_by_default(config, type, layer)) return kind;
  if (type.has_attention != nullptr)
    refuse_config(fmt::format(
        "layer_types: layer {} is {}, but other keys of model_type \"{}\" say another kind; remove "
        "layer_types",
        layer, json_excerpt(name), type.name));
  refuse_config(fmt::format(
      "layer_types: layer {} is {}, but all layers of model_type \"{}\" with sliding_window = {} "
      "are the other kind; remove the wrong key",
      layer, json_excerpt(name), type.name, json_excerpt(config.value("sliding_window", Json()))));
}

}  // namespace

std::optional<int> window_of(const Json& config, const ModelType& type) {
  if (reads(type, "use_sliding_window") && !flag(config, "use_sliding_window")) return {};
  return optional<int>(config, "sliding_window");
}

std::vector<LayerKind> layer_kinds(const Json& config, const ModelType& type) {
  const int count = num_layers(config, type);
  if (is_set(config, "layer_types")) check_layer_types(config["layer_types"], count);
  std::vector<LayerKind> kinds;
  kinds.reserve(static_cast<std::size_t>(count));
  for (int layer = 0; layer < count; ++layer) kinds.push_back(kind_of(config, type, layer));
  return kinds;
}

bool has_rope(const Json& config, const ModelType& type, int layer, LayerKind kind) {
  switch (type.rope_layers) {
    case RopeLayers::kAll:
      return true;
    case RopeLayers::kNone:
      return false;
    case RopeLayers::kFromConfig:
      return is_rope_layer(config, layer);
    case RopeLayers::kWithWindow:
      return kind == LayerKind::kSliding;
    case RopeLayers::kWithWindowIfAny:
      return !window_of(config, type) || kind == LayerKind::kSliding;
    case RopeLayers::kIfEmbeddingSaysSo:
      return optional<std::string>(config, "position_embedding_type") == "rope";
  }
  return true;
}

}  // namespace lazyrope
