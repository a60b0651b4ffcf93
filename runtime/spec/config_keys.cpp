#include "runtime/spec/config_keys.h"

#include <fmt/format.h>

#include <algorithm>

#include "runtime/base/log.h"

namespace lazyrope {
namespace {

// A key that can change attention, and the values with which it does not. It is refused with any
// other value, unless the row of the model type reads it.
struct GuardedKey {
  const char* name;
  std::vector<Json> neutral = {nullptr};
};

const std::vector<GuardedKey>& guarded_keys() {
  static const std::vector<GuardedKey> rows = {
      // The masks and the caches of transformers read these keys for every type. A config object
      // counts null as false, so is_causal must be true.
      {"is_causal", {true}},
      {"sliding_window"},
      {"attention_chunk_size"},
      {"num_kv_shared_layers", {nullptr, 0}},
      {"per_layer_config", {nullptr, Json::object()}},
      {"text_config"},
      // Other model types, the code of a model's repository or other engines read these keys.
      {"alibi", {nullptr, false}},
      {"attention_multiplier"},
      {"attn_logit_softcapping"},
      {"dual_chunk_attention_config"},
      {"multi_query", {nullptr, false}},
      {"new_decoder_architecture", {nullptr, false}},
      {"no_rope_layer_interval"},
      {"no_rope_layers"},
      {"partial_rotary_factor", {nullptr, 1.0}},
      {"query_pre_attn_scalar"},
      {"rope_interleaved", {nullptr, false}},
      {"rope_local_base_freq"},
      {"rotary_dim"},
      {"rotary_pct", {nullptr, 1.0}},
      {"scale_attn_weights", {nullptr, true}},
      {"sliding_window_pattern"},
      {"use_bidirectional_attention", {nullptr, false}},
      {"use_mrope", {nullptr, false}},
  };
  return rows;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_guarded_keys() { (void)guarded_keys(); }

// Returns true if the key is guarded. Throws SpecError if its value is not neutral.
bool is_neutral(const std::string& key, const Json& value) {
  const auto row = std::ranges::find(guarded_keys(), key, &GuardedKey::name);
  if (row == guarded_keys().end()) return false;
  if (std::ranges::find(row->neutral, value) != row->neutral.end()) return true;
  refuse_config(fmt::format("{} = {} would change the result, and there is no kernel for it yet",
                            key, json_excerpt(value)));
}

void rename_aliases(const ModelType& type, Json& config) {
  for (const auto& [alias, key] : type.aliases) {
    if (is_set(config, alias)) {
      if (is_set(config, key) && config[key] != config[alias])
        refuse_config(fmt::format("{} = {} and {} = {} differ; remove the wrong one", alias,
                                  json_excerpt(config[alias]), key, json_excerpt(config[key])));
      config[key] = config[alias];
    }
    config.erase(alias);
  }
}

}  // namespace

Json keys_read(const Json& given, const ModelType& type) {
  Json config = type.defaults;
  Json ignored = Json::array();
  for (const auto& [key, value] : given.items()) {
    if (reads(type, key))
      config[key] = value;
    else if (!is_neutral(key, value))
      ignored.push_back(key);
  }
  rename_aliases(type, config);
  if (type.complete != nullptr) type.complete(config);
  if (!ignored.empty())
    log_message(LogLevel::kDebug, "config.json: ignored keys, which do not change attention: {}",
                json_excerpt(ignored));
  return config;
}

}  // namespace lazyrope
