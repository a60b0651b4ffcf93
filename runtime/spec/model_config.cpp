#include "runtime/spec/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>
#include <utility>

#include "codegen/error.h"

namespace lazyrope {
namespace {

using Json = nlohmann::json;

constexpr int kMaxLayers = 10000;

// The layers that have the config's sliding window if the config has no layer_types.
enum class Windows {
  kNone,                 // no layer: a window is refused
  kAll,                  // all layers
  kFromMaxWindowLayers,  // the layers from max_window_layers on
  kEven,                 // layers 0, 2, 4, ...
  kWithoutRope           // the layers without RoPE
};

// The number of KV heads of a model type.
enum class KvHeads {
  kRequired,  // num_key_value_heads, which must be in the config
  kAllHeads,  // num_key_value_heads; by default all query heads
  kFalcon     // from new_decoder_architecture, num_kv_heads and multi_query
};

// The attention of a model type, as far as it differs from the defaults. Norms of q and k come
// before the rotation, so they are not lazyrope's concern.
struct ModelType {
  std::string_view name;
  std::string_view rope = "neox";  // variant of rope_type "default"
  Windows windows = Windows::kNone;
  KvHeads kv_heads = KvHeads::kRequired;
  std::optional<int> head_dim = {};  // fallback; empty: hidden_size / heads
  bool sinks = false;
  // The neutral_keys() that are read for this type.
  std::vector<std::string_view> reads = {};
  // The values that transformers uses for absent keys, where they differ from null.
  Json defaults = Json::object();
};

const std::vector<ModelType>& model_types() {
  static const std::vector<ModelType> rows = {
      {.name = "llama", .kv_heads = KvHeads::kAllHeads},
      {.name = "mistral", .windows = Windows::kAll, .defaults = {{"sliding_window", 4096}}},
      {.name = "qwen2", .windows = Windows::kFromMaxWindowLayers},
      {.name = "qwen3", .windows = Windows::kFromMaxWindowLayers, .head_dim = 128},
      {.name = "gemma2",
       .windows = Windows::kEven,
       .head_dim = 256,
       .reads = {"attn_logit_softcapping", "query_pre_attn_scalar"},
       .defaults = {{"sliding_window", 4096},
                    {"attn_logit_softcapping", 50.0},
                    {"query_pre_attn_scalar", 256}}},
      {.name = "phi3",
       .windows = Windows::kAll,
       .kv_heads = KvHeads::kAllHeads,
       .reads = {"partial_rotary_factor"}},
      {.name = "gptj", .rope = "gptj", .kv_heads = KvHeads::kAllHeads, .reads = {"rotary_dim"}},
      {.name = "gpt_neox",
       .kv_heads = KvHeads::kAllHeads,
       .reads = {"partial_rotary_factor", "rotary_pct"},
       .defaults = {{"rotary_pct", 0.25}}},
      {.name = "falcon",
       .kv_heads = KvHeads::kFalcon,
       .reads = {"multi_query", "new_decoder_architecture"}},
      {.name = "starcoder2", .windows = Windows::kAll},
      {.name = "smollm3",
       .windows = Windows::kWithoutRope,
       .reads = {"no_rope_layers", "no_rope_layer_interval"},
       .defaults = {{"rope_theta", 2e6}}},
      {.name = "olmo2", .kv_heads = KvHeads::kAllHeads},
      {.name = "gpt_oss",
       .windows = Windows::kEven,
       .head_dim = 64,
       .sinks = true,
       .defaults = {{"sliding_window", 128},
                    {"rope_theta", 150000.0},
                    {"rope_scaling",
                     {{"rope_type", "yarn"},
                      {"factor", 32.0},
                      {"beta_fast", 32.0},
                      {"beta_slow", 1.0},
                      {"truncate", false},
                      {"original_max_position_embeddings", 4096}}}}},
  };
  return rows;
}

// A key that can change the result of attention, and the value with which it does not.
struct NeutralKey {
  std::string_view name;
  Json neutral = nullptr;
};

const std::vector<NeutralKey>& neutral_keys() {
  static const std::vector<NeutralKey> rows = {{"attn_logit_softcapping"},
                                               {"attention_multiplier"},
                                               {"attention_chunk_size"},
                                               {"query_pre_attn_scalar"},
                                               {"partial_rotary_factor", 1.0},
                                               {"rotary_pct", 1.0},
                                               {"rotary_dim"},
                                               {"no_rope_layers"},
                                               {"no_rope_layer_interval"},
                                               {"multi_query", false},
                                               {"new_decoder_architecture", false},
                                               {"use_bidirectional_attention", false},
                                               {"alibi", false}};
  return rows;
}

bool is_set(const Json& config, const char* key) {
  return config.contains(key) && !config[key].is_null();
}

[[noreturn]] void refuse(const std::string& why) { throw SpecError("config.json: " + why); }

template <class T>
bool holds(const Json& value) {
  if constexpr (std::is_same_v<T, int>)
    return value.is_number_integer() && value == Json(value.get<int>());
  if constexpr (std::is_same_v<T, double>) return value.is_number();
  if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
  return value.is_string();
}

template <class T>
T required(const Json& config, const char* key) {
  if (!is_set(config, key)) refuse(fmt::format("{} is missing", key));
  if (!holds<T>(config[key]))
    refuse(fmt::format("{} = {} has the wrong type", key, config[key].dump()));
  return config[key].get<T>();
}

template <class T>
T value_or(const Json& config, const char* key, const T& otherwise) {
  return is_set(config, key) ? required<T>(config, key) : otherwise;
}

const ModelType& model_type(const Json& config) {
  const auto type = required<std::string>(config, "model_type");
  std::vector<std::string_view> known;
  for (const ModelType& row : model_types()) {
    if (type == row.name) return row;
    known.push_back(row.name);
  }
  refuse(fmt::format("model_type = \"{}\"; known are: {}", type, fmt::join(known, ", ")));
}

void check_neutral(const Json& config, const ModelType& type) {
  for (const NeutralKey& key : neutral_keys()) {
    const std::string name(key.name);
    if (!is_set(config, name.c_str()) || config[name] == key.neutral) continue;
    if (std::ranges::count(type.reads, key.name) > 0) continue;
    refuse(fmt::format("{} = {} would change the result, and there is no kernel for it yet", name,
                       config[name].dump()));
  }
}

// A key with the value null is absent on purpose, so the default does not replace it. The exception
// is a scaling of RoPE, which transformers then takes from the model's type.
Json with_defaults(Json config, const ModelType& type) {
  for (const auto& [key, value] : type.defaults.items()) {
    const bool is_given = key == "rope_scaling"
                              ? is_set(config, "rope_scaling") || is_set(config, "rope_parameters")
                              : config.contains(key);
    if (!is_given) config[key] = value;
  }
  return config;
}

// Reads a count from its key, or from the key that old configs of GPT-J and Falcon have.
int count_of(const Json& config, const char* key, const char* old_key) {
  return required<int>(config, is_set(config, old_key) && !is_set(config, key) ? old_key : key);
}

// Returns 1 if the number is missing and all layers are the same.
int num_layers(const Json& config, const ModelType& type) {
  const bool is_missing = !is_set(config, "num_hidden_layers") && !is_set(config, "n_layer");
  const bool are_same = type.windows == Windows::kNone || type.windows == Windows::kAll;
  return is_missing && are_same && !is_set(config, "layer_types")
             ? 1
             : count_of(config, "num_hidden_layers", "n_layer");
}

// Returns false for the layers of SmolLM3 without RoPE: those with 0 in no_rope_layers, or else
// every n-th layer.
bool has_rope(const Json& config, const ModelType& type, int layer) {
  if (std::ranges::count(type.reads, "no_rope_layers") == 0) return true;
  if (!is_set(config, "no_rope_layers")) {
    const int interval = value_or(config, "no_rope_layer_interval", 4);
    if (interval < 1)
      refuse(fmt::format("no_rope_layer_interval = {}; it must be at least 1", interval));
    return (layer + 1) % interval != 0;
  }
  const Json& list = config["no_rope_layers"];
  if (!list.is_array() || std::cmp_greater_equal(layer, list.size()))
    refuse(fmt::format("no_rope_layers = {} has no layer {}", list.dump(), layer));
  return list[static_cast<std::size_t>(layer)] != 0;
}

bool has_window(const Json& config, const ModelType& type, int layer) {
  if (is_set(config, "layer_types")) {
    const Json& types = config["layer_types"];
    if (!types.is_array() || std::cmp_greater_equal(layer, types.size()))
      refuse(fmt::format("layer_types = {} has no layer {}", types.dump(), layer));
    const Json& kind = types[static_cast<std::size_t>(layer)];
    if (kind == "full_attention") return false;
    if (kind != "sliding_attention")
      refuse(
          fmt::format("layer_types: layer {} is {}; known are: full_attention, sliding_attention",
                      layer, kind.dump()));
    return true;
  }
  switch (type.windows) {
    case Windows::kNone:
    case Windows::kAll:
      return true;
    case Windows::kFromMaxWindowLayers:
      return layer >= required<int>(config, "max_window_layers");
    case Windows::kEven:
      return layer % 2 == 0;
    case Windows::kWithoutRope:
      return !has_rope(config, type, layer);
  }
  return true;
}

void read_window(const Json& config, const ModelType& type, int layer, AttentionSpec& spec) {
  const bool by_default =
      type.windows != Windows::kFromMaxWindowLayers && type.windows != Windows::kWithoutRope;
  if (!is_set(config, "sliding_window") || !value_or(config, "use_sliding_window", by_default))
    return;
  if (!has_window(config, type, layer)) return;
  if (type.windows == Windows::kNone)
    refuse(
        fmt::format("sliding_window = {} would change the result; model_type \"{}\" is not known "
                    "to have one",
                    config["sliding_window"].dump(), type.name));
  spec.mask = "sliding_window";
  spec.mask_parameters["window"] = required<int>(config, "sliding_window");
}

// Returns the RoPE parameters as one object. Version 5 of transformers writes such an object. Older
// versions write rope_theta (GPT-NeoX: rotary_emb_base) beside rope_scaling.
Json rope_parameters(const Json& config) {
  if (is_set(config, "rope_parameters") && is_set(config, "rope_scaling") &&
      config["rope_parameters"] != config["rope_scaling"])
    refuse("rope_parameters and rope_scaling differ; remove the wrong one");
  Json rope = is_set(config, "rope_parameters") ? config["rope_parameters"]
              : is_set(config, "rope_scaling")  ? config["rope_scaling"]
                                                : Json::object();
  if (!rope.is_object())
    refuse(fmt::format("rope parameters are {}; an object is expected", rope.dump()));
  for (const char* key : {"rotary_emb_base", "rope_theta"})
    if (!rope.contains("rope_theta") && is_set(config, key)) rope["rope_theta"] = config[key];
  if (!rope.contains("rope_theta")) rope["rope_theta"] = 10000.0;
  if (!rope.contains("rope_type"))
    rope["rope_type"] = value_or<std::string>(rope, "type", "default");
  if (is_set(rope, "type") && rope["type"] != rope["rope_type"])
    refuse(fmt::format("rope_type = {} and type = {} differ; remove the wrong one",
                       rope["rope_type"].dump(), rope["type"].dump()));
  rope.erase("type");
  return rope;
}

// Returns the number of columns that are rotated, and removes partial_rotary_factor from `rope`.
int rotary_dim(const Json& config, const ModelType& type, Json& rope, int head_dim) {
  if (std::ranges::count(type.reads, "rotary_dim") > 0) return required<int>(config, "rotary_dim");
  double fraction = value_or(config, "rotary_pct", value_or(config, "partial_rotary_factor", 1.0));
  if (std::ranges::count(type.reads, "partial_rotary_factor") > 0) {
    fraction = value_or(rope, "partial_rotary_factor", fraction);
    rope.erase("partial_rotary_factor");
  }
  return static_cast<int>(head_dim * fraction);
}

// Adds the parameters of YaRN that the config leaves out, with the defaults of transformers.
void complete_yarn(const Json& config, Json& rope) {
  for (const char* key : {"factor", "beta_fast", "beta_slow", "attention_factor", "mscale",
                          "mscale_all_dim", "original_max_position_embeddings"})
    if (!is_set(rope, key)) rope.erase(key);
  const char* const context = "original_max_position_embeddings";
  if (is_set(config, context))
    rope[context] = config[context];
  else if (!rope.contains(context))
    rope[context] = required<double>(config, "max_position_embeddings");
  if (!rope.contains("factor"))
    rope["factor"] =
        required<double>(config, "max_position_embeddings") / required<double>(rope, context);
  if (rope.contains("truncate")) rope["truncate"] = value_or(rope, "truncate", false) ? 1.0 : 0.0;
  if (!rope.contains("attention_factor") && value_or(rope, "mscale", 0.0) != 0.0 &&
      value_or(rope, "mscale_all_dim", 0.0) != 0.0) {
    const double log_factor = std::log(std::max(required<double>(rope, "factor"), 1.0));
    const auto scale = [&](const char* key) {
      return 0.1 * required<double>(rope, key) * log_factor + 1.0;
    };
    rope["attention_factor"] = scale("mscale") / scale("mscale_all_dim");
  }
  rope.erase("mscale");
  rope.erase("mscale_all_dim");
}

// A rope_type, and the variant and parameters of RopeSpec that it stands for.
struct RopeType {
  std::string_view name;
  std::string_view variant;  // empty: the variant of the model type
  std::vector<const char*> parameters;
  std::vector<const char*> optional = {};
  void (*complete)(const Json& config, Json& rope) = [](const Json&, Json&) {};
};

const std::vector<RopeType>& rope_types() {
  static const std::vector<RopeType> rows = {
      {"default", "", {}},
      {"linear", "linear", {"factor"}},
      {"llama3",
       "llama3",
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}},
      {.name = "yarn",
       .variant = "yarn",
       .parameters = {"factor", "original_max_position_embeddings"},
       .optional = {"beta_fast", "beta_slow", "truncate", "attention_factor"},
       .complete = complete_yarn}};
  return rows;
}

const RopeType& rope_type(const std::string& name, const ModelType& model) {
  std::vector<std::string_view> known;
  for (const RopeType& row : rope_types()) {
    if (!row.variant.empty() && model.rope != "neox") continue;
    if (row.name == name) return row;
    known.push_back(row.name);
  }
  refuse(fmt::format("rope_type = \"{}\" has no kernel yet; known are: {}", name,
                     fmt::join(known, ", ")));
}

RopeSpec rope_spec(const Json& config, const ModelType& model, int head_dim) {
  Json rope = rope_parameters(config);
  const RopeType& type = rope_type(required<std::string>(rope, "rope_type"), model);
  RopeSpec spec;
  spec.variant = type.variant.empty() ? model.rope : type.variant;
  spec.rotary_dim = rotary_dim(config, model, rope, head_dim);
  spec.parameters["theta"] = required<double>(rope, "rope_theta");
  type.complete(config, rope);
  const auto take = [&](const char* key) {
    spec.parameters[key] = required<double>(rope, key);
    rope.erase(key);
  };
  for (const char* key : type.parameters) take(key);
  for (const char* key : type.optional)
    if (rope.contains(key)) take(key);
  rope.erase("rope_type");
  rope.erase("rope_theta");
  if (!rope.empty())
    refuse(fmt::format("rope_type \"{}\" with {} = {}, which is not known", type.name,
                       rope.begin().key(), rope.begin()->dump()));
  return spec;
}

int divided_head_dim(const Json& config, int num_q_heads) {
  const int hidden_size = count_of(config, "hidden_size", "n_embd");
  if (hidden_size % num_q_heads != 0)
    refuse(fmt::format("hidden_size = {} with num_attention_heads = {}; it must be a multiple",
                       hidden_size, num_q_heads));
  return hidden_size / num_q_heads;
}

int num_kv_heads(const Json& config, const ModelType& type, int num_q_heads) {
  if (type.kv_heads == KvHeads::kFalcon) {
    if (value_or(config, "new_decoder_architecture", false))
      return value_or(config, "num_kv_heads", num_q_heads);
    return value_or(config, "multi_query", true) ? 1 : num_q_heads;
  }
  if (!config.contains("num_key_value_heads") && type.kv_heads == KvHeads::kRequired)
    return required<int>(config, "num_key_value_heads");
  return value_or(config, "num_key_value_heads", num_q_heads);
}

Dtype config_dtype(const Json& config) {
  for (const char* key : {"dtype", "torch_dtype"})
    if (is_set(config, key)) return dtype_from(required<std::string>(config, key));
  return Dtype::kBf16;
}

AttentionSpec layer_spec(const Json& config, const ModelType& type,
                         const std::optional<std::string>& dtype, int layer) {
  AttentionSpec spec;
  spec.num_q_heads = count_of(config, "num_attention_heads", "n_head");
  if (spec.num_q_heads < 1)
    refuse(fmt::format("num_attention_heads = {}; it must be at least 1", spec.num_q_heads));
  spec.num_kv_heads = num_kv_heads(config, type, spec.num_q_heads);
  spec.head_dim = is_set(config, "head_dim") ? required<int>(config, "head_dim")
                  : type.head_dim            ? *type.head_dim
                                             : divided_head_dim(config, spec.num_q_heads);
  spec.dtype = dtype ? dtype_from(*dtype) : config_dtype(config);
  if (has_rope(config, type, layer)) spec.rope = rope_spec(config, type, spec.head_dim);
  read_window(config, type, layer, spec);
  spec.softcap = value_or(config, "attn_logit_softcapping", 0.0);
  if (is_set(config, "query_pre_attn_scalar"))
    spec.scale = 1.0 / std::sqrt(required<double>(config, "query_pre_attn_scalar"));
  spec.sinks = type.sinks;
  validate(spec);
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
  const Json given = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!given.is_object()) refuse("not a JSON object");
  const ModelType& type = model_type(given);
  check_neutral(given, type);
  const Json config = with_defaults(given, type);
  std::vector<AttentionSpec> specs;
  const int count = num_layers(config, type);
  if (count < 1 || count > kMaxLayers)
    refuse(fmt::format("num_hidden_layers = {}; allowed are 1 to {}", count, kMaxLayers));
  specs.reserve(static_cast<std::size_t>(count));
  for (int layer = 0; layer < count; ++layer)
    specs.push_back(layer_spec(config, type, dtype, layer));
  return specs;
}

AttentionSpec attention_spec_from_hf(const std::string& json,
                                     const std::optional<std::string>& dtype,
                                     std::optional<int> layer) {
  const std::vector<AttentionSpec> specs = attention_specs_from_hf(json, dtype);
  const auto count = static_cast<int>(specs.size());
  if (layer) {
    if (*layer < 0 || *layer >= count)
      refuse(fmt::format("layer {} of a model that has layers 0 to {}", *layer, count - 1));
    return specs[static_cast<std::size_t>(*layer)];
  }
  const auto other = std::ranges::find_if(specs, [&](const auto& s) { return s != specs[0]; });
  if (other == specs.end()) return specs[0];
  const auto kernels = [](const AttentionSpec& spec) { return describe(spec.kernel_spec()); };
  refuse(fmt::format("its layers differ; choose one with layer=. Layer 0: {}; layer {}: {}",
                     kernels(specs[0]), other - specs.begin(), kernels(*other)));
}

}  // namespace lazyrope
