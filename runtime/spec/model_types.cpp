#include "runtime/spec/model_types.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "codegen/nearest_name.h"
#include "runtime/spec/hybrid_layers.h"
#include "runtime/spec/refused_types.h"

namespace lazyrope {
namespace {

constexpr const char* kOriginalContext = "original_max_position_embeddings";

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

Keys gemma2_keys() {
  return window_keys() + Keys{"attn_logit_softcapping", "query_pre_attn_scalar"};
}

Json defaults_of_gemma2() {
  return {{"sliding_window", 4096},
          {"attn_logit_softcapping", 50.0},
          {"query_pre_attn_scalar", 256},
          {"head_dim", 256}};
}

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

// For Llama 4 an empty list is no list.
void remove_empty_no_rope_layers(Json& config) {
  if (config.value("no_rope_layers", Json()) == Json::array()) config.erase("no_rope_layers");
}

Json yarn_of_ministral3() {
  return {{"rope_type", "yarn"},
          {"rope_theta", 1e6},
          {"factor", 16.0},
          {"original_max_position_embeddings", 16384},
          {"beta_fast", 32.0},
          {"beta_slow", 1.0},
          {"mscale_all_dim", 1.0},
          {"mscale", 1.0},
          {"llama_4_scaling_beta", 0.1}};
}

Json yarn_of_gpt_oss() {
  return {{"rope_type", "yarn"}, {"factor", 32.0},    {"beta_fast", 32.0},
          {"beta_slow", 1.0},    {"truncate", false}, {"original_max_position_embeddings", 4096}};
}

Keys without(Keys keys, std::string_view removed) {
  std::erase(keys, removed);
  return keys;
}

// The keys of types with RoPE of its own for each kind of layer.
Keys keys_of_kinds() { return without(window_keys(), kOriginalContext); }

Keys position_keys_of_images() { return {"mrope_section", "mrope_interleaved"}; }
Keys rope_types_of_images() { return {"default", "mrope", "linear", "yarn", "dynamic"}; }

// The names of layers without attention that transformers gives up for "linear_attention".
Keys recurrent_names() { return {"linear_attention", "mamba", "conv"}; }

// Qwen3-Next and Qwen3.5: three layers of four are recurrent.
ModelType qwen_hybrid(std::string_view name) {
  return {.name = name,
          .reads = partial_keys() + Keys{"full_attention_interval"},
          .defaults = {{"head_dim", 256}, {"partial_rotary_factor", 0.25}},
          .has_attention = hybrid_layers::every_fourth,
          .has_older_names = true,
          .without_attention = recurrent_names(),
          .fraction_key = "partial_rotary_factor"};
}

ModelType qwen_hybrid_of_images(std::string_view name) {
  ModelType type = qwen_hybrid(name);
  type.rope_types = rope_types_of_images();
  type.other_rope_keys = position_keys_of_images();
  return type;
}

ModelType qwen2_of_images(std::string_view name) {
  return {.name = name,
          .reads = qwen_keys(),
          .defaults = {{"sliding_window", 4096}, {"max_window_layers", 80}},
          .head_dim = HeadDim::kPerHead,
          .windows = Windows::kFromMaxWindowLayers,
          .rope_types = rope_types_of_images(),
          .theta = 1e6,
          .other_rope_keys = position_keys_of_images()};
}

// Bamba's code rotates half of each head, whatever partial_rotary_factor says outside of the
// parameters of RoPE.
void rotate_half_of_heads(Json& config) { config["partial_rotary_factor"] = 0.5; }

// Mellum's rope_parameters has no older form. transformers replaces it by rope_scaling, if a config
// has both.
void refuse_rope_scaling(Json& config) {
  if (is_set(config, "rope_scaling"))
    refuse_config(
        fmt::format("rope_scaling = {}; a config of model_type \"mellum\" has "
                    "rope_parameters instead",
                    json_excerpt(config["rope_scaling"])));
}

std::vector<ModelType> hybrid_rows() {
  return {
      {.name = "lfm2",
       .reads = llama_keys() + Keys{"full_attn_idxs"},
       .has_attention = hybrid_layers::of_full_attn_idxs,
       .without_attention = {"conv"},
       .theta = 1e6},
      {.name = "lfm2_moe",
       .reads = llama_keys(),
       .has_attention = hybrid_layers::listed,
       .without_attention = {"conv"},
       .theta = 1e6},
      qwen_hybrid("qwen3_next"),
      qwen_hybrid_of_images("qwen3_5_text"),
      qwen_hybrid_of_images("qwen3_5_moe_text"),
      {.name = "minimax",
       .reads = llama_keys(),
       .has_attention = hybrid_layers::even,
       .without_attention = {"linear_attention"},
       .theta = 1e6},
      {.name = "granitemoehybrid",
       .reads = granite_keys() + Keys{"position_embedding_type", "layers_block_type"},
       .defaults = unscaled(),
       .aliases = {{"layers_block_type", "layer_types"}},
       .has_attention = hybrid_layers::none,
       .has_older_names = true,
       .without_attention = recurrent_names(),
       .rope_layers = RopeLayers::kIfEmbeddingSaysSo,
       .scale_key = "attention_multiplier"},
      {.name = "bamba",
       .reads = partial_keys() + Keys{"attn_layer_indices"},
       .has_attention = hybrid_layers::of_attn_layer_indices,
       .reads_layer_types = false,
       .without_attention = {"linear_attention"},
       .complete = rotate_half_of_heads,
       .rope_types = {"default"},
       .fraction_key = "partial_rotary_factor"},
      {.name = "jamba",
       .reads = {"head_dim", "num_key_value_heads", "attn_layer_period", "attn_layer_offset"},
       .defaults = {{"attn_layer_period", 8}, {"attn_layer_offset", 4}},
       .has_attention = hybrid_layers::of_period,
       .reads_layer_types = false,
       .without_attention = {"linear_attention"},
       .rope_layers = RopeLayers::kNone},
      {.name = "nemotron_h",
       .reads = {"head_dim", "num_key_value_heads", "hybrid_override_pattern", "layers_block_type"},
       .defaults = {{"head_dim", 128}},
       .aliases = {{"layers_block_type", "layer_types"}},
       .has_attention = hybrid_layers::listed,
       .has_older_names = true,
       .without_attention = recurrent_names() + Keys{"moe", "mlp"},
       .complete = hybrid_layers::read_pattern_of_nemotron_h,
       .rope_layers = RopeLayers::kNone},
      // Each layer has attention and a recurrent part beside it.
      {.name = "falcon_h1", .reads = llama_keys()},
  };
}

// Text models of wrappers, whose positions of images have several axes.
std::vector<ModelType> text_rows() {
  return {
      qwen2_of_images("qwen2_vl_text"),
      qwen2_of_images("qwen2_5_vl_text"),
      {.name = "qwen3_vl_text",
       .reads = llama_keys(),
       .defaults = {{"head_dim", 128}},
       .rope_types = rope_types_of_images(),
       .theta = 5e5,
       .other_rope_keys = position_keys_of_images()},
      {.name = "qwen3_vl_moe_text",
       .reads = llama_keys(),
       .rope_types = rope_types_of_images(),
       .theta = 5e5,
       .other_rope_keys = position_keys_of_images()},
      {.name = "glm4v_text",
       .reads = partial_keys(),
       .defaults = {{"partial_rotary_factor", 1.0}},
       .head_dim = HeadDim::kPerHead,
       .pairing = "gptj",
       .rope_types = {"default"},
       .fraction_key = "partial_rotary_factor",
       .other_rope_keys = position_keys_of_images()},
      {.name = "glm4v_moe_text",
       .reads = partial_keys(),
       .defaults = {{"partial_rotary_factor", 0.5}},
       .rope_types = {"default"},
       .fraction_key = "partial_rotary_factor",
       .other_rope_keys = position_keys_of_images()},
  };
}

std::vector<ModelType> rows_of_kinds() {
  return {
      {.name = "gemma3_text",
       .reads = keys_of_kinds() +
                Keys{"query_pre_attn_scalar", "rope_local_base_freq", "sliding_window_pattern"},
       .defaults = {{"sliding_window", 4096},
                    {"sliding_window_pattern", 6},
                    {"query_pre_attn_scalar", 256},
                    {"head_dim", 256}},
       .windows = Windows::kAllButEveryNth,
       .theta = 1e6,
       .has_rope_of_kinds = true,
       .sliding_theta_key = "rope_local_base_freq"},
      {.name = "olmo3",
       .reads = keys_of_kinds(),
       .defaults = {{"num_key_value_heads", nullptr}, {"sliding_window", 4096}},
       .windows = Windows::kAllButEveryNth,
       .theta = 5e5,
       .has_rope_of_kinds = true,
       .sliding_theta = 5e5},
      {.name = "mellum",
       .reads = without(keys_of_kinds(), "rope_theta"),
       .defaults = {{"sliding_window", 1024}, {"head_dim", 128}},
       .windows = Windows::kNoneByDefault,
       .complete = refuse_rope_scaling,
       .theta = 5e5,
       .has_rope_of_kinds = true},
  };
}

std::vector<ModelType> plain_rows() {
  return {
      {.name = "llama", .reads = llama_keys(), .defaults = all_heads_by_default()},
      {.name = "mistral",
       .reads = window_keys(),
       .defaults = {{"sliding_window", 4096}},
       .windows = Windows::kAll},
      {.name = "ministral3",
       .reads = window_keys(),
       .defaults = {{"sliding_window", nullptr},
                    {"num_key_value_heads", 8},
                    {"head_dim", 128},
                    {"max_position_embeddings", 262144},
                    {"rope_parameters", yarn_of_ministral3()}},
       .windows = Windows::kAll,
       .temperatures = Temperatures::kOfRope,
       .other_rope_keys = {"llama_4_scaling_beta", "max_position_embeddings"}},
      {.name = "llama4_text",
       .reads =
           llama_keys() + Keys{"attention_chunk_size", "no_rope_layers", "no_rope_layer_interval",
                               "attn_temperature_tuning", "attn_scale", "floor_scale"},
       .defaults = {{"num_key_value_heads", 8},
                    {"head_dim", 128},
                    {"no_rope_layer_interval", 4},
                    {"attention_chunk_size", 8192},
                    {"attn_temperature_tuning", true},
                    {"attn_scale", 0.1},
                    {"floor_scale", 8192}},
       .windows = Windows::kChunksWithRope,
       .complete = remove_empty_no_rope_layers,
       .rope_layers = RopeLayers::kFromConfig,
       .temperatures = Temperatures::kWithoutRope,
       .pairing = "gptj",
       .rope_types = {"default", "llama3"},
       .theta = 5e5},
      {.name = "qwen2",
       .reads = qwen_keys(),
       .defaults = {{"sliding_window", 4096}, {"max_window_layers", 28}},
       .windows = Windows::kFromMaxWindowLayers},
      {.name = "qwen3",
       .reads = qwen_keys(),
       .defaults = {{"sliding_window", 4096}, {"max_window_layers", 28}, {"head_dim", 128}},
       .windows = Windows::kFromMaxWindowLayers},
      {.name = "gemma2",
       .reads = gemma2_keys(),
       .defaults = defaults_of_gemma2(),
       .windows = Windows::kEven},
      {.name = "phi3",
       .reads = window_keys() + Keys{"partial_rotary_factor"},
       .defaults = {{"num_key_value_heads", nullptr},
                    {"partial_rotary_factor", 1.0},
                    {kOriginalContext, 4096}},
       .windows = Windows::kAll,
       .rope_types = {"default", "longrope", "su"},
       .fraction_key = "partial_rotary_factor"},
      {.name = "phimoe",
       .reads = window_keys(),
       .windows = Windows::kAll,
       .rope_types = {"default", "longrope"},
       .theta = 1e6,
       .has_mscale = true},
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
       .windows = Windows::kAllButEveryNth,
       .rope_layers = RopeLayers::kWithWindow,
       .pairing = "gptj",
       .rope_types = {"default"}},
      {.name = "exaone4",
       .reads = pattern_keys(),
       .defaults = {{"sliding_window", 4096}},
       .windows = Windows::kAllButEveryNth,
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
      {.name = "qwen2_moe",
       .reads = qwen_keys(),
       .defaults = {{"sliding_window", 4096}, {"max_window_layers", 28}},
       .windows = Windows::kEvenBelowMaxWindowLayers},
      {.name = "ministral",
       .reads = window_keys(),
       .defaults = {{"sliding_window", 4096}},
       .windows = Windows::kAllByDefault},
      {.name = "vaultgemma",
       .reads = gemma2_keys(),
       .defaults = defaults_of_gemma2(),
       .windows = Windows::kEven},
      {.name = "exaone_moe",
       .reads = pattern_keys(),
       .defaults = {{"sliding_window", 4096}},
       .windows = Windows::kAllButEveryNth,
       .rope_layers = RopeLayers::kWithWindowIfAny},
      {.name = "afmoe",
       .reads = window_keys() + Keys{"global_attn_every_n_layers"},
       .defaults = {{"num_key_value_heads", nullptr}, {"sliding_window", 1024}, {"head_dim", 128}},
       .aliases = {{"global_attn_every_n_layers", "sliding_window_pattern"}},
       .windows = Windows::kAllButEveryNth,
       .rope_layers = RopeLayers::kWithWindow},
      {.name = "persimmon",
       .reads = without(partial_keys(), "num_key_value_heads"),
       .defaults = {{"partial_rotary_factor", 0.5}},
       .head_dim = HeadDim::kPerHead,
       .kv_heads = KvHeads::kAllHeads,
       .rope_types = {"default"},
       .fraction_key = "partial_rotary_factor"},
      {.name = "hyperclovax",
       .reads = granite_keys(),
       .defaults = all_heads_by_default(),
       .scale_key = "attention_multiplier"},
  };
}

std::vector<ModelType> rows() {
  std::vector<ModelType> all = plain_rows();
  for (const auto& more : {rows_of_kinds(), hybrid_rows(), text_rows()})
    all.insert(all.end(), more.begin(), more.end());
  return all;
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
  if (const std::string_view reason = refusal_of_type(type); !reason.empty())
    refuse_config(fmt::format("model_type = {}: {}", json_excerpt(type), reason));
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
