#include "runtime/spec/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "codegen/error.h"
#include "runtime/spec/config_json.h"
#include "runtime/spec/config_keys.h"
#include "runtime/spec/config_rope.h"
#include "runtime/spec/config_temperature.h"
#include "runtime/spec/layer_kinds.h"
#include "runtime/spec/model_types.h"
#include "runtime/spec/wrapper_types.h"

namespace lazyrope {
namespace {

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

void read_window(const Json& config, const ModelType& type, int layer, AttentionSpec& spec) {
  const std::optional<int> window = window_of(config, type);
  if (!window)
    refuse_config(
        fmt::format("layer {} has a sliding window, but the config has none: set "
                    "sliding_window{}",
                    layer, reads(type, "use_sliding_window") ? " and use_sliding_window" : ""));
  spec.mask = "sliding_window";
  spec.mask_parameters["window"] = *window;
}

void read_chunk(const Json& config, AttentionSpec& spec) {
  spec.mask = "chunked";
  spec.mask_parameters["chunk"] = required<int>(config, "attention_chunk_size");
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
  const bool has_default = type.scale_key != nullptr && type.defaults.contains(type.scale_key);
  if (type.scale_key != nullptr && (has_default || is_set(config, type.scale_key))) {
    const auto scale = required<double>(config, type.scale_key);
    if (!(scale > 0.0))
      refuse_config(fmt::format("{} = {}; it must be more than 0", type.scale_key, scale));
    spec.scale = scale;
  }
  spec.sinks = type.sinks;
}

// Returns the spec of a layer without RoPE and without a window.
AttentionSpec common_spec(const Json& config, const ModelType& type,
                          const std::optional<std::string>& dtype) {
  AttentionSpec spec;
  spec.num_q_heads = num_q_heads(config);
  spec.num_kv_heads = num_kv_heads(config, type, spec.num_q_heads);
  spec.head_dim = head_dim_of(config, type, spec.num_q_heads);
  spec.dtype = dtype ? dtype_from(*dtype) : config_dtype(config);
  read_scores(config, type, spec);
  return spec;
}

// Returns the RoPE of each kind of layer with attention that the model has.
std::map<LayerKind, RopeSpec> ropes_of_kinds(const Json& config, const ModelType& type,
                                             const std::vector<LayerKind>& kinds, int head_dim,
                                             const RopeUse& use) {
  std::map<LayerKind, RopeSpec> ropes;
  if (type.rope_layers == RopeLayers::kNone) return {};
  for (const LayerKind kind : {LayerKind::kFull, LayerKind::kSliding, LayerKind::kChunked})
    if (std::ranges::find(kinds, kind) != kinds.end())
      ropes[kind] = rope_of_config(config, type, kind, head_dim, use);
  return ropes;
}

void check_max_model_len(std::optional<int> max_model_len) {
  if (max_model_len && *max_model_len < 1)
    throw SpecError(fmt::format("max_model_len = {}; it must be at least 1", *max_model_len));
}

// Returns the number of a layer with attention. Throws SpecError if the layers with attention
// differ, or there is none.
int only_layer(const LayerSpecs& specs) {
  const auto has_attention = [](const auto& spec) { return spec.has_value(); };
  const auto first = std::ranges::find_if(specs, has_attention);
  if (first == specs.end()) refuse_config("none of its layers has attention");
  const auto other =
      std::ranges::find_if(specs, [&](const auto& spec) { return spec && *spec != **first; });
  if (other == specs.end()) return static_cast<int>(first - specs.begin());
  const auto kernels = [](const auto& spec) { return describe(spec->kernel_spec()); };
  refuse_config(fmt::format("its layers differ; choose one with layer=. Layer {}: {}; layer {}: {}",
                            first - specs.begin(), kernels(*first), other - specs.begin(),
                            kernels(*other)));
}

[[noreturn]] void refuse_layer_without_attention(const LayerSpecs& specs, int layer) {
  std::vector<int> layers;
  for (int i = 0; std::cmp_less(i, specs.size()); ++i)
    if (specs[static_cast<std::size_t>(i)]) layers.push_back(i);
  constexpr std::size_t kShown = 16;
  const bool is_long = layers.size() > kShown;
  if (is_long) layers.resize(kShown);
  refuse_config(
      fmt::format("layer {} has no attention: it is recurrent, or has no mixer of tokens. Layers "
                  "with attention: {}{}",
                  layer, layers.empty() ? "none" : fmt::format("{}", fmt::join(layers, ", ")),
                  is_long ? ", ..." : ""));
}

}  // namespace

LayerSpecs attention_specs_from_hf(const std::string& json, const std::optional<std::string>& dtype,
                                   const RopeUse& use) {
  check_max_model_len(use.max_model_len);
  const Json given = text_config_of(parse_config(json));
  const ModelType& type = model_type_of(given);
  const Json config = keys_read(given, type);
  const std::vector<LayerKind> kinds = layer_kinds(config, type);
  const AttentionSpec common = common_spec(config, type, dtype);
  const auto ropes = ropes_of_kinds(config, type, kinds, common.head_dim, use);
  LayerSpecs specs(kinds.size());
  for (int layer = 0; std::cmp_less(layer, kinds.size()); ++layer) {
    const LayerKind kind = kinds[static_cast<std::size_t>(layer)];
    if (kind == LayerKind::kNoAttention) continue;
    AttentionSpec spec = common;
    spec.key_form = use.key_form;
    const bool rotates = has_rope(config, type, layer, kind);
    if (rotates) spec.rope = ropes.at(kind);
    if (kind == LayerKind::kSliding) read_window(config, type, layer, spec);
    if (kind == LayerKind::kChunked) read_chunk(config, spec);
    spec.temperature = temperature_of_config(config, type, kind, rotates);
    validate(spec);
    specs[static_cast<std::size_t>(layer)] = std::move(spec);
  }
  return specs;
}

AttentionSpec attention_spec_from_hf(const std::string& json,
                                     const std::optional<std::string>& dtype,
                                     std::optional<int> layer, const RopeUse& use) {
  LayerSpecs specs = attention_specs_from_hf(json, dtype, use);
  const auto count = static_cast<int>(specs.size());
  if (layer && (*layer < 0 || *layer >= count))
    refuse_config(fmt::format("layer {} of a model that has layers 0 to {}", *layer, count - 1));
  const int chosen = layer ? *layer : only_layer(specs);
  std::optional<AttentionSpec>& spec = specs[static_cast<std::size_t>(chosen)];
  if (!spec) refuse_layer_without_attention(specs, chosen);
  return std::move(*spec);
}

}  // namespace lazyrope
