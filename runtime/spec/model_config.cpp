#include "runtime/spec/model_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "runtime/spec/config_json.h"
#include "runtime/spec/config_keys.h"
#include "runtime/spec/config_rope.h"
#include "runtime/spec/model_types.h"

namespace lazyrope {
namespace {

constexpr int kMaxLayers = 10000;

// Returns 1 if the number is missing and all layers are the same.
int num_layers(const Json& config, const ModelType& type) {
  const bool are_same = type.windows == Windows::kNone || type.windows == Windows::kAll;
  if (!is_set(config, "num_hidden_layers") && are_same && !is_set(config, "layer_types")) return 1;
  const int count = required<int>(config, "num_hidden_layers");
  if (count < 1 || count > kMaxLayers)
    refuse_config(fmt::format("num_hidden_layers = {}; allowed are 1 to {}", count, kMaxLayers));
  return count;
}

int num_q_heads(const Json& config) {
  const int heads = required<int>(config, "num_attention_heads");
  if (heads < 1)
    refuse_config(fmt::format("num_attention_heads = {}; it must be at least 1", heads));
  return heads;
}

int divided_head_dim(const Json& config, int num_q_heads) {
  const int hidden_size = required<int>(config, "hidden_size");
  if (hidden_size % num_q_heads != 0)
    refuse_config(
        fmt::format("hidden_size = {} with num_attention_heads = {}; it must be a multiple",
                    hidden_size, num_q_heads));
  return hidden_size / num_q_heads;
}

int head_dim_of(const Json& config, const ModelType& type, int num_q_heads) {
  const auto given = optional<int>(config, "head_dim");
  if (type.head_dim == HeadDim::kFromConfig) {
    if (given) return *given;
    if (type.defaults.contains("head_dim")) return required<int>(config, "head_dim");
  }
  const int divided = divided_head_dim(config, num_q_heads);
  if (given && *given != divided)
    refuse_config(
        fmt::format("head_dim = {}, but model_type \"{}\" divides hidden_size by "
                    "num_attention_heads, which is {}; remove the wrong one",
                    *given, type.name, divided));
  return divided;
}

int kv_heads_of_falcon(const Json& config, int num_q_heads) {
  const int given = optional<int>(config, "num_kv_heads").value_or(num_q_heads);
  if (flag(config, "new_decoder_architecture")) return given;
  if (flag(config, "multi_query")) return 1;
  if (given != num_q_heads)
    refuse_config(
        fmt::format("num_kv_heads = {} with num_attention_heads = {}; without "
                    "new_decoder_architecture and multi_query they must be equal",
                    given, num_q_heads));
  return num_q_heads;
}

int num_kv_heads(const Json& config, const ModelType& type, int num_q_heads) {
  if (type.kv_heads == KvHeads::kAllHeads) return num_q_heads;
  if (type.kv_heads == KvHeads::kFalcon) return kv_heads_of_falcon(config, num_q_heads);
  const bool is_null =
      config.contains("num_key_value_heads") && !is_set(config, "num_key_value_heads");
  return is_null ? num_q_heads : required<int>(config, "num_key_value_heads");
}

Dtype config_dtype(const Json& config) {
  for (const char* key : {"dtype", "torch_dtype"})
    if (const auto name = optional<std::string>(config, key)) return dtype_from(printable(*name));
  return Dtype::kBf16;
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

std::optional<int> window_of(const Json& config, const ModelType& type) {
  if (reads(type, "use_sliding_window") && !flag(config, "use_sliding_window")) return {};
  return optional<int>(config, "sliding_window");
}

int window_period(const Json& config) {
  const int period = optional<int>(config, "sliding_window_pattern").value_or(4);
  if (period < 1)
    refuse_config(fmt::format("sliding_window_pattern = {}; it must be at least 1", period));
  return period;
}

// Returns whether the layer has the window if the config has no layer_types.
bool has_window_by_default(const Json& config, const ModelType& type, int layer, bool is_given) {
  switch (type.windows) {
    case Windows::kNone:
      return false;
    case Windows::kAll:
      return is_given;
    case Windows::kFromMaxWindowLayers:
      return is_given && layer >= required<int>(config, "max_window_layers");
    case Windows::kEven:
      return layer % 2 == 0;
    case Windows::kAllButEveryFourth:
      return (layer + 1) % window_period(config) != 0;
    case Windows::kAllButFirstOfFour:
      return layer % 4 != 0;
    case Windows::kWithoutRope:
      return is_given && !is_rope_layer(config, layer);
  }
  return false;
}

void check_layer_types(const Json& config, int num_layers) {
  if (!is_set(config, "layer_types")) return;
  const Json& types = config["layer_types"];
  if (!types.is_array() || std::cmp_not_equal(types.size(), num_layers))
    refuse_config(
        fmt::format("layer_types = {} with num_hidden_layers = {}; there must be a type "
                    "for each layer",
                    json_excerpt(types), num_layers));
}

bool has_window(const Json& config, const ModelType& type, int layer, bool is_given) {
  const bool by_default = has_window_by_default(config, type, layer, is_given);
  if (!is_set(config, "layer_types")) return by_default;
  const Json& kind = config["layer_types"][static_cast<std::size_t>(layer)];
  if (kind != "full_attention" && kind != "sliding_attention")
    refuse_config(
        fmt::format("layer_types: layer {} is {}; known are: full_attention, sliding_attention",
                    layer, json_excerpt(kind)));
  const bool is_sliding = kind == "sliding_attention";
  const bool is_read = type.windows != Windows::kNone && type.windows != Windows::kAll;
  if (!is_read && is_sliding != by_default)
    refuse_config(fmt::format(
        "layer_types: layer {} is {}, but all layers of model_type \"{}\" with sliding_window = {} "
        "are the other kind; remove the wrong key",
        layer, json_excerpt(kind), type.name,
        json_excerpt(config.value("sliding_window", Json()))));
  return is_sliding;
}

bool has_rope(const Json& config, const ModelType& type, int layer) {
  const bool is_given = window_of(config, type).has_value();
  switch (type.rope_layers) {
    case RopeLayers::kAll:
      return true;
    case RopeLayers::kFromConfig:
      return is_rope_layer(config, layer);
    case RopeLayers::kWithWindow:
      return has_window(config, type, layer, is_given);
    case RopeLayers::kWithWindowIfAny:
      return !is_given || has_window(config, type, layer, is_given);
  }
  return true;
}

void read_window(const Json& config, const ModelType& type, int layer, AttentionSpec& spec) {
  const std::optional<int> window = window_of(config, type);
  if (!has_window(config, type, layer, window.has_value())) return;
  if (!window)
    refuse_config(
        fmt::format("layer {} has a sliding window, but the config has none: set "
                    "sliding_window{}",
                    layer, reads(type, "use_sliding_window") ? " and use_sliding_window" : ""));
  spec.mask = "sliding_window";
  spec.mask_parameters["window"] = *window;
}

void read_scores(const Json& config, const ModelType& type, AttentionSpec& spec) {
  if (const auto softcap = optional<double>(config, "attn_logit_softcapping")) {
    if (*softcap == 0.0)
      refuse_config("attn_logit_softcapping = 0; use null for scores without a cap");
    spec.softcap = *softcap;
  }
  if (reads(type, "query_pre_attn_scalar")) {
    const auto scalar = required<double>(config, "query_pre_attn_scalar");
    if (!(scalar > 0.0))
      refuse_config(fmt::format("query_pre_attn_scalar = {}; it must be more than 0", scalar));
    spec.scale = 1.0 / std::sqrt(scalar);
  }
  if (type.scale_key != nullptr) {
    const auto scale = required<double>(config, type.scale_key);
    if (!(scale > 0.0))
      refuse_config(fmt::format("{} = {}; it must be more than 0", type.scale_key, scale));
    spec.scale = scale;
  }
  spec.sinks = type.sinks;
}

// Returns the spec of a layer with RoPE and without a window.
AttentionSpec common_spec(const Json& config, const ModelType& type,
                          const std::optional<std::string>& dtype) {
  AttentionSpec spec;
  spec.num_q_heads = num_q_heads(config);
  spec.num_kv_heads = num_kv_heads(config, type, spec.num_q_heads);
  spec.head_dim = head_dim_of(config, type, spec.num_q_heads);
  spec.dtype = dtype ? dtype_from(*dtype) : config_dtype(config);
  spec.rope = rope_of_config(config, type, spec.head_dim);
  read_scores(config, type, spec);
  return spec;
}

}  // namespace

std::vector<std::string> model_types_of_hf() {
  std::vector<std::string> names;
  for (const ModelType& row : model_types()) names.emplace_back(row.name);
  return names;
}

std::vector<AttentionSpec> attention_specs_from_hf(const std::string& json,
                                                   const std::optional<std::string>& dtype) {
  const Json given = parse_config(json);
  const ModelType& type = model_type_of(given);
  const Json config = keys_read(given, type);
  const int count = num_layers(config, type);
  check_layer_types(config, count);
  std::vector<AttentionSpec> specs(static_cast<std::size_t>(count),
                                   common_spec(config, type, dtype));
  for (int layer = 0; layer < count; ++layer) {
    AttentionSpec& spec = specs[static_cast<std::size_t>(layer)];
    if (!has_rope(config, type, layer)) spec.rope = {};
    read_window(config, type, layer, spec);
    validate(spec);
  }
  return specs;
}

AttentionSpec attention_spec_from_hf(const std::string& json,
                                     const std::optional<std::string>& dtype,
                                     std::optional<int> layer) {
  const std::vector<AttentionSpec> specs = attention_specs_from_hf(json, dtype);
  const auto count = static_cast<int>(specs.size());
  if (layer) {
    if (*layer < 0 || *layer >= count)
      refuse_config(fmt::format("layer {} of a model that has layers 0 to {}", *layer, count - 1));
    return specs[static_cast<std::size_t>(*layer)];
  }
  const auto other = std::ranges::find_if(specs, [&](const auto& s) { return s != specs[0]; });
  if (other == specs.end()) return specs[0];
  const auto kernels = [](const AttentionSpec& spec) { return describe(spec.kernel_spec()); };
  refuse_config(fmt::format("its layers differ; choose one with layer=. Layer 0: {}; layer {}: {}",
                            kernels(specs[0]), other - specs.begin(), kernels(*other)));
}

}  // namespace lazyrope
