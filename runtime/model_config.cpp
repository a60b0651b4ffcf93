#include "runtime/model_config.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <nlohmann/json.hpp>
#include <string_view>
#include <type_traits>

#include "codegen/error.h"

namespace lazyrope {
namespace {

using Json = nlohmann::json;

// Model types whose attention is plain grouped-query attention with rotary embeddings of all
// columns in NeoX pairing. Norms of q and k (Qwen3) come before the rotation and do not concern it.
constexpr std::array kPlainModels = {"llama", "mistral", "qwen2", "qwen3"};

// Keys that would change the result, and the value with which they do not.
struct NeutralKey {
  const char* name;
  Json neutral;
};

std::vector<NeutralKey> neutral_keys() {
  return {{"sliding_window", nullptr},
          {"attn_logit_softcapping", nullptr},
          {"attention_multiplier", nullptr},
          {"partial_rotary_factor", 1.0},
          {"no_rope_layers", nullptr}};
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

void check_model_type(const Json& config) {
  const auto type = required<std::string>(config, "model_type");
  for (const char* known : kPlainModels)
    if (type == known) return;
  refuse(fmt::format("model_type = \"{}\"; known are: {}", type, fmt::join(kPlainModels, ", ")));
}

void check_neutral(const Json& config) {
  const bool window_off = !value_or(config, "use_sliding_window", true);
  for (const NeutralKey& key : neutral_keys()) {
    if (!is_set(config, key.name) || config[key.name] == key.neutral) continue;
    if (std::string_view(key.name) == "sliding_window" && window_off) continue;
    refuse(fmt::format("{} = {} would change the result, and there is no kernel for it yet",
                       key.name, config[key.name].dump()));
  }
}

// The older form has rope_theta beside rope_scaling, version 5's one object with both.
Json rope_parameters(const Json& config) {
  Json rope = is_set(config, "rope_parameters") ? config["rope_parameters"]
              : is_set(config, "rope_scaling")  ? config["rope_scaling"]
                                                : Json::object();
  if (!rope.is_object())
    refuse(fmt::format("rope parameters are {}; an object is expected", rope.dump()));
  if (!rope.contains("rope_theta"))
    rope["rope_theta"] = is_set(config, "rope_theta") ? config["rope_theta"] : Json(10000.0);
  if (!rope.contains("rope_type"))
    rope["rope_type"] = value_or<std::string>(rope, "type", "default");
  rope.erase("type");
  return rope;
}

RopeSpec rope_spec(const Json& config, int head_dim) {
  Json rope = rope_parameters(config);
  const auto type = required<std::string>(rope, "rope_type");
  RopeSpec spec;
  spec.rotary_dim = head_dim;
  spec.parameters["theta"] = required<double>(rope, "rope_theta");
  rope.erase("rope_type");
  rope.erase("rope_theta");
  if (type == "default") {
    spec.variant = "neox";
  } else if (type == "llama3") {
    spec.variant = "llama3";
    for (const char* key :
         {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
      spec.parameters[key] = required<double>(rope, key);
      rope.erase(key);
    }
  } else {
    refuse(fmt::format("rope_type = \"{}\"; known are: default, llama3", type));
  }
  if (!rope.empty())
    refuse(fmt::format("rope_type \"{}\" with {} = {}, which is not known", type,
                       rope.begin().key(), rope.begin()->dump()));
  return spec;
}

int divided_head_dim(const Json& config, int num_q_heads) {
  const int hidden_size = required<int>(config, "hidden_size");
  if (hidden_size % num_q_heads != 0)
    refuse(fmt::format("hidden_size = {} with num_attention_heads = {}; it must be a multiple",
                       hidden_size, num_q_heads));
  return hidden_size / num_q_heads;
}

Dtype config_dtype(const Json& config) {
  for (const char* key : {"dtype", "torch_dtype"})
    if (is_set(config, key)) return dtype_from(required<std::string>(config, key));
  return Dtype::kBf16;
}

}  // namespace

AttentionSpec attention_spec_from_hf(const std::string& json,
                                     const std::optional<std::string>& dtype) {
  const Json config = Json::parse(json, nullptr, /*allow_exceptions=*/false);
  if (!config.is_object()) refuse("not a JSON object");
  check_model_type(config);
  check_neutral(config);
  AttentionSpec spec;
  spec.num_q_heads = required<int>(config, "num_attention_heads");
  spec.num_kv_heads = value_or(config, "num_key_value_heads", spec.num_q_heads);
  if (spec.num_q_heads < 1) refuse(fmt::format("num_attention_heads = {}", spec.num_q_heads));
  spec.head_dim = is_set(config, "head_dim") ? required<int>(config, "head_dim")
                                             : divided_head_dim(config, spec.num_q_heads);
  spec.dtype = dtype ? dtype_from(*dtype) : config_dtype(config);
  spec.rope = rope_spec(config, spec.head_dim);
  validate(spec);
  return spec;
}

}  // namespace lazyrope
