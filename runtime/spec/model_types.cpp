#include "runtime/spec/model_types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "codegen/nearest_name.h"

namespace lazyrope {
namespace {

// transformers reads these keys for every type.
Keys for_all() {
  return {"model_type",          "dtype",       "torch_dtype",      "hidden_size",
          "num_attention_heads", "layer_types", "num_hidden_layers"};
}

// The keys of RoPE that transformers reads for every type with a rotary embedding of its own.
Keys rope_keys() {
  return {"rope_parameters", "rope_scaling", "max_position_embeddings",
          "original_max_position_embeddings"};
}

Keys operator+(Keys keys, const Keys& more) {
  keys.insert(keys.end(), more.begin(), more.end());
  return keys;
}

Keys llama_keys() { return rope_keys() + Keys{"rope_theta", "head_dim", "num_key_value_heads"}; }
Keys window_keys() { return llama_keys() + Keys{"sliding_window"}; }
Keys qwen_keys() { return window_keys() + Keys{"use_sliding_window", "max_window_layers"}; }

Keys partial_keys() { return llama_keys() + Keys{"partial_rotary_factor"}; }
Keys granite_keys() { return llama_keys() + Keys{"attention_multiplier"}; }
Keys pattern_keys() { return window_keys() + Keys{"sliding_window_pattern"}; }

// The defaults of Granite.
Json unscaled() { return {{"num_key_value_heads", nullptr}, {"attention_multiplier", 1.0}}; }

Json llama3_with(double factor, double theta) {
  return {{"rope_type", "llama3"},   {"rope_theta", theta},
          {"factor", factor},        {"low_freq_factor", 1.0},
          {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 8192}};
}

// Returns the defaults of a type whose heads are rotated in part.
Json rotated_part(double fraction) {
  return {{"num_key_value_heads", nullptr}, {"partial_rotary_factor", fraction}};
}

Json all_heads_by_default() { return {{"num_key_value_heads", nullptr}}; }

Json yarn_of_gpt_oss() {
  return {{"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
          {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
}

std::vector<ModelType> rows() {
  return {
      {.name = "llama", .reads = llama_keys(), .defaults = all_heads_by_default()},
      {.name = "mistral",
       .reads = window_keys(),
       .defaults = {{"sliding_window", 4096}},
       .windows = Windows::kAll},
      {.name = "qwen2",
       .reads = qwen_keys(),
       .defaults = {{"sliding_window", 4096}, {"max_window_layers", 28}},
       .windows = Windows::kFromMaxWindowLayers},
      {.name = "qwen3",
       .reads = qwen_keys(),
       .defaults = {{"sliding_window", 4096}, {"max_window_layers", 28}, {"head_dim", 128}},
       .windows = Windows::kFromMaxWindowLayers},
      {.name = "gemma2",
       .reads = window_keys() + Keys{"attn_logit_softcapping", "query_pre_attn_scalar"},
       .defaults = {{"sliding_window", 4096},
                    {"attn_logit_softcapping", 50.0},
                    {"query_pre_attn_scalar", 256},
                    {"head_dim", 256}},
       .windows = Windows::kEven},
      {.name = "phi3",
       .reads = window_keys() + Keys{"partial_rotary_factor"},
       .defaults = {{"num_key_value_heads", nullptr}, {"partial_rotary_factor", 1.0}},
       .windows = Windows::kAll,
       .rope_types = {"default"},
       .fraction_key = "partial_rotary_factor"},
      {.name = "gptj",
       .reads = {"n_embd", "n_head", "n_layer", "rotary_dim"},
       .defaults = {{"rotary_dim", 64}},
       .aliases = {{"n_embd", "hidden_size"},
                   {"n_head", "num_attention_heads"},
                   {"n_layer", "num_hidden_layers"}},
       .head_dim = HeadDim::kPerHead,
       .kv_heads = KvHeads::kAllHeads,
       .pairing = "gptj",
       .rope_types = {"default"}},
      {.name = "gpt_neox",
       .reads = rope_keys() + Keys{"rotary_emb_base", "rotary_pct", "head_dim"},
       .defaults = {{"rotary_pct", 0.25}},
       .head_dim = HeadDim::kPerHead,
       .kv_heads = KvHeads::kAllHeads,
       .theta_key = "rotary_emb_base",
       .fraction_key = "rotary_pct"},
      {.name = "falcon",
       .reads = rope_keys() + Keys{"rope_theta", "head_dim", "n_embed", "num_kv_heads",
                                   "multi_query", "new_decoder_architecture"},
       .defaults = {{"multi_query", true}},
       .aliases = {{"n_embed", "hidden_size"}},
       .head_dim = HeadDim::kPerHead,
       .kv_heads = KvHeads::kFalcon},
      {.name = "starcoder2", .reads = window_keys(), .windows = Windows::kAll},
      {.name = "smollm3",
       .reads =
           window_keys() + Keys{"use_sliding_window", "no_rope_layers", "no_rope_layer_interval"},
       .defaults = {{"no_rope_layer_interval", 4}},
       .windows = Windows::kWithoutRope,
       .rope_layers = RopeLayers::kFromConfig,
       .theta = 2e6},
      {.name = "olmo2", .reads = llama_keys(), .defaults = all_heads_by_default()},
      {.name = "gpt_oss",
       .reads = window_keys(),
       .defaults = {{"sliding_window", 128},
                    {"head_dim", 64},
                    {"rope_parameters", yarn_of_gpt_oss()}},
       .windows = Windows::kEven,
       .sinks = true,
       .theta = 150000.0},
      {.name = "mixtral", .reads = window_keys(), .windows = Windows::kAll, .theta = 1e6},
      {.name = "qwen3_moe",
       .reads = window_keys() + Keys{"use_sliding_window"},
       .defaults = {{"sliding_window", 4096}},
       .windows = Windows::kAll},
      {.name = "dots1",
       .reads = window_keys() + Keys{"max_window_layers"},
       .defaults = {{"sliding_window", 4096}, {"max_window_layers", 62}},
       .windows = Windows::kFromMaxWindowLayers},
      {.name = "cwm",
       .reads = window_keys(),
       .defaults = {{"sliding_window", 8192},
                    {"head_dim", 128},
                    {"rope_parameters", llama3_with(16.0, 1e6)}},
       .windows = Windows::kAllButFirstOfFour,
       .theta = 1e6},
      {.name = "cohere2",
       .reads = pattern_keys(),
       .defaults = {{"sliding_window", 4096}},
       .head_dim = HeadDim::kPerHead,
       .windows = Windows::kAllButEveryFourth,
       .rope_layers = RopeLayers::kWithWindow,
       .pairing = "gptj",
       .rope_types = {"default"}},
      {.name = "exaone4",
       .reads = pattern_keys(),
       .defaults = {{"sliding_window", 4096}},
       .windows = Windows::kAllButEveryFourth,
       .rope_layers = RopeLayers::kWithWindowIfAny},
      {.name = "arcee", .reads = llama_keys(), .defaults = all_heads_by_default()},
      {.name = "jais2", .reads = llama_keys(), .defaults = all_heads_by_default()},
      {.name = "olmo", .reads = llama_keys(), .defaults = all_heads_by_default()},
      {.name = "olmoe", .reads = llama_keys(), .defaults = all_heads_by_default()},
      {.name = "flex_olmo",
       .reads = llama_keys(),
       .defaults = all_heads_by_default(),
       .theta = 5e5},
      {.name = "bitnet", .reads = llama_keys(), .theta = 5e5},
      {.name = "apertus",
       .reads = llama_keys(),
       .defaults = {{"num_key_value_heads", nullptr}, {"rope_parameters", llama3_with(8.0, 12e6)}},
       .theta = 12e6},
      {.name = "gemma", .reads = llama_keys(), .defaults = {{"head_dim", 256}}},
      {.name = "seed_oss", .reads = llama_keys(), .defaults = {{"head_dim", 128}}},
      {.name = "hy_v3",
       .reads = llama_keys(),
       .defaults = {{"head_dim", 128}},
       .theta = 11158840.0},
      {.name = "minimax_m2", .reads = llama_keys(), .defaults = {{"head_dim", 128}}, .theta = 5e6},
      {.name = "ernie4_5",
       .reads = llama_keys(),
       .defaults = {{"head_dim", 128}},
       .pairing = "gptj",
       .rope_types = {"default"},
       .theta = 5e5},
      {.name = "ernie4_5_moe",
       .reads = llama_keys(),
       .pairing = "gptj",
       .rope_types = {"default"},
       .theta = 5e5},
      {.name = "cohere",
       .reads = llama_keys(),
       .defaults = all_heads_by_default(),
       .pairing = "gptj",
       .rope_types = {"default"},
       .theta = 5e5},
      {.name = "helium",
       .reads = llama_keys(),
       .defaults = {{"head_dim", 128}},
       .pairing = "gptj",
       .rope_types = {"default"},
       .theta = 1e5},
      {.name = "granite",
       .reads = granite_keys(),
       .defaults = unscaled(),
       .scale_key = "attention_multiplier"},
      {.name = "granitemoe",
       .reads = granite_keys(),
       .defaults = unscaled(),
       .scale_key = "attention_multiplier"},
      {.name = "granitemoeshared",
       .reads = granite_keys(),
       .defaults = unscaled(),
       .scale_key = "attention_multiplier"},
      {.name = "phi",
       .reads = partial_keys(),
       .defaults = rotated_part(0.5),
       .rope_types = {"default"},
       .fraction_key = "partial_rotary_factor"},
      {.name = "stablelm",
       .reads = partial_keys(),
       .defaults = rotated_part(0.25),
       .head_dim = HeadDim::kPerHead,
       .rope_types = {"default"},
       .fraction_key = "partial_rotary_factor"},
      {.name = "nemotron",
       .reads = partial_keys(),
       .defaults = rotated_part(0.5),
       .rope_types = {"default"},
       .fraction_key = "partial_rotary_factor"},
      {.name = "glm",
       .reads = partial_keys(),
       .defaults = {{"head_dim", 128}, {"partial_rotary_factor", 0.5}},
       .pairing = "gptj",
       .rope_types = {"default"},
       .fraction_key = "partial_rotary_factor"},
      {.name = "glm4",
       .reads = partial_keys(),
       .defaults = {{"head_dim", 128}, {"partial_rotary_factor", 0.5}},
       .pairing = "gptj",
       .rope_types = {"default"},
       .fraction_key = "partial_rotary_factor"},
      {.name = "glm4_moe",
       .reads = partial_keys(),
       .defaults = {{"partial_rotary_factor", 0.5}},
       .rope_types = {"default"},
       .fraction_key = "partial_rotary_factor"},
      {.name = "solar_open",
       .reads = partial_keys(),
       .defaults = {{"head_dim", 128}, {"partial_rotary_factor", 1.0}},
       .rope_types = {"default"},
       .theta = 1e6,
       .fraction_key = "partial_rotary_factor"},
  };
}

}  // namespace

const std::vector<ModelType>& model_types() {
  static const std::vector<ModelType> all = rows();
  return all;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] static void load_model_types() { (void)model_types(); }

const ModelType& model_type_of(const Json& config) {
  const auto type = required<std::string>(config, "model_type");
  std::vector<std::string> known;
  for (const ModelType& row : model_types()) {
    if (type == row.name) return row;
    known.emplace_back(row.name);
  }
  refuse_config(
      fmt::format("model_type = {}{}; {} types are known, such as llama, qwen3 and gemma2: "
                  "lazyrope.model_types() returns all",
                  json_excerpt(type), did_you_mean(type, known), known.size()));
}

bool reads(const ModelType& type, std::string_view key) {
  const auto is_key = [&](const char* name) { return key == name; };
  return std::ranges::any_of(for_all(), is_key) || std::ranges::any_of(type.reads, is_key);
}

}  // namespace lazyrope
