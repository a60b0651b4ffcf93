#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "codegen/error.h"
#include "runtime/base/log.h"
#include "runtime/spec/layer_groups.h"
#include "runtime/spec/model_config.h"
#include "tests/support/log_capture.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

using Json = nlohmann::json;

// The published configs, reduced to the keys of attention and a few others.
Json llama31_8b() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"attention_bias", false},
          {"hidden_size", 4096},
          {"max_position_embeddings", 131072},
          {"model_type", "llama"},
          {"num_attention_heads", 32},
          {"num_hidden_layers", 32},
          {"num_key_value_heads", 8},
          {"rope_scaling",
           {{"factor", 8.0},
            {"low_freq_factor", 1.0},
            {"high_freq_factor", 4.0},
            {"original_max_position_embeddings", 8192},
            {"rope_type", "llama3"}}},
          {"rope_theta", 500000.0},
          {"torch_dtype", "bfloat16"}};
}

Json qwen3_8b() {
  return {{"head_dim", 128},           {"hidden_size", 4096},         {"max_window_layers", 36},
          {"model_type", "qwen3"},     {"num_attention_heads", 32},   {"num_key_value_heads", 8},
          {"rope_scaling", nullptr},   {"rope_theta", 1000000},       {"sliding_window", nullptr},
          {"torch_dtype", "bfloat16"}, {"use_sliding_window", false}, {"num_hidden_layers", 36}};
}

Json smollm2_135m() {
  return {{"hidden_size", 576},       {"model_type", "llama"},     {"num_attention_heads", 9},
          {"num_key_value_heads", 3}, {"rope_interleaved", false}, {"rope_scaling", nullptr},
          {"rope_theta", 100000},     {"torch_dtype", "bfloat16"}};
}

// Returns the same config in the form of transformers 5.
Json in_version_5(Json config) {
  Json rope =
      config["rope_scaling"].is_null() ? Json{{"rope_type", "default"}} : config["rope_scaling"];
  rope["rope_theta"] = config["rope_theta"];
  config["rope_parameters"] = rope;
  config["dtype"] = config["torch_dtype"];
  for (const char* old : {"rope_scaling", "rope_theta", "torch_dtype"}) config.erase(old);
  return config;
}

AttentionSpec spec_of(const Json& config) { return attention_spec_from_hf(config.dump(), {}); }

AttentionSpec expected(int head_dim, int num_q_heads, int num_kv_heads, const RopeSpec& rope) {
  AttentionSpec spec;
  spec.head_dim = head_dim;
  spec.num_q_heads = num_q_heads;
  spec.num_kv_heads = num_kv_heads;
  spec.rope = rope;
  return spec;
}

TEST(ModelConfig, ReadsRealModelsInBothForms) {
  const std::vector<std::pair<Json, AttentionSpec>> models = {
      {llama31_8b(), expected(128, 32, 8, llama3(128))},
      {qwen3_8b(), expected(128, 32, 8, {"neox", 128, {{"theta", 1e6}}})},
      {smollm2_135m(), expected(64, 9, 3, {"neox", 64, {{"theta", 1e5}}})}};
  for (const auto& [config, spec] : models) {
    EXPECT_EQ(spec_of(config), spec) << config;
    EXPECT_EQ(spec_of(in_version_5(config)), spec) << config;
  }
}

TEST(ModelConfig, TheOldestFormHasTypeInsteadOfRopeType) {
  Json config = llama31_8b();
  config["rope_scaling"]["type"] = config["rope_scaling"]["rope_type"];
  config["rope_scaling"].erase("rope_type");
  EXPECT_EQ(spec_of(config), spec_of(llama31_8b()));
}

TEST(ModelConfig, TheCallersDtypeReplacesThatOfTheConfig) {
  Json config = llama31_8b();
  EXPECT_EQ(attention_spec_from_hf(config.dump(), "float16").dtype, Dtype::kFp16);
  config["torch_dtype"] = "float32";
  EXPECT_EQ(attention_spec_from_hf(config.dump(), "float16").dtype, Dtype::kFp16);
  config.erase("torch_dtype");
  EXPECT_EQ(spec_of(config).dtype, Dtype::kBf16);
}

TEST(ModelConfig, AbsentKeysHaveTheModelTypesDefaults) {
  Json config = smollm2_135m();
  config.erase("rope_theta");
  config.erase("num_key_value_heads");
  EXPECT_EQ(spec_of(config), expected(64, 9, 9, {"neox", 64, {{"theta", 10000.0}}}));
}

TEST(ModelConfig, AnUnusedWindowIsIgnored) {
  Json config = qwen3_8b();
  config["model_type"] = "qwen2";
  config["sliding_window"] = 131072;
  EXPECT_NO_THROW(spec_of(config));
  EXPECT_EQ(spec_of(config).mask, "causal");
  config["use_sliding_window"] = true;
  EXPECT_EQ(spec_of(config).mask, "causal") << "no layer has an index of max_window_layers or more";
  config["max_window_layers"] = 28;
  EXPECT_TRUE(throws<SpecError>([&] { spec_of(config); }, {"its layers differ", "layer 28: ",
                                                           "sliding_window (window 131072)"}));
  const auto layer = [&](int i) { return attention_spec_from_hf(config.dump(), {}, i); };
  EXPECT_EQ(layer(27).mask, "causal");
  EXPECT_EQ(layer(28).mask_parameters, (MaskParameters{{"window", 131072}}));
  EXPECT_TRUE(throws<SpecError>([&] { layer(36); }, {"layer 36", "layers 0 to 35"}));
}

Json tiny(const char* model_type) {
  return {{"model_type", model_type}, {"num_attention_heads", 8}, {"num_key_value_heads", 2},
          {"num_hidden_layers", 4},   {"hidden_size", 512},       {"head_dim", 64}};
}

TEST(ModelConfig, ModelTypesHaveDefaultsOfTheirOwn) {
  EXPECT_EQ(spec_of(tiny("mistral")).mask_parameters, (MaskParameters{{"window", 4096}}));
  Json no_window = tiny("mistral");
  no_window["sliding_window"] = nullptr;
  EXPECT_EQ(spec_of(no_window).mask, "causal") << "null means no window";
  const auto layer = [](const char* type, int i) {
    return attention_spec_from_hf(tiny(type).dump(), {}, i);
  };
  EXPECT_EQ(layer("gemma2", 0).mask_parameters, (MaskParameters{{"window", 4096}}));
  EXPECT_EQ(layer("gemma2", 1).mask, "causal");
  EXPECT_EQ(layer("gemma2", 1).softcap, 50.0);
  EXPECT_EQ(layer("gemma2", 1).scale, 1.0 / 16);
  EXPECT_EQ(spec_of(tiny("gpt_neox")).rope.rotary_dim, 16);
  EXPECT_EQ(layer("smollm3", 0).rope.parameters.at("theta"), 2e6);
  EXPECT_EQ(layer("gpt_oss", 1).rope.variant, "yarn");
  EXPECT_EQ(layer("gpt_oss", 1).rope.parameters,
            (RopeParameters{{"theta", 150000.0},
                            {"factor", 32.0},
                            {"beta_fast", 32.0},
                            {"beta_slow", 1.0},
                            {"truncate", 0.0},
                            {"original_max_position_embeddings", 4096.0}}));
}

TEST(ModelConfig, SmolLM3HasWindowsInLayersWithoutRope) {
  Json config = tiny("smollm3");
  config["use_sliding_window"] = true;
  config["sliding_window"] = 64;
  const auto mask = [&](int i) { return attention_spec_from_hf(config.dump(), {}, i).mask; };
  EXPECT_EQ(mask(2), "causal");
  EXPECT_EQ(mask(3), "sliding_window");
  config["no_rope_layer_interval"] = 0;
  EXPECT_TRUE(throws<SpecError>([&] { mask(3); }, {"no_rope_layer_interval = 0; it must be at"}));
}

TEST(ModelConfig, LayersWithEqualAttentionFormGroups) {
  const std::string gemma2 = tiny("gemma2").dump();
  const std::vector<LayerGroup> groups = attention_groups_from_hf(gemma2, "float16");
  ASSERT_EQ(groups.size(), 2u);
  EXPECT_EQ(groups[0].layers, (std::vector<int>{0, 2}));
  EXPECT_EQ(groups[1].layers, (std::vector<int>{1, 3}));
  for (const LayerGroup& group : groups)
    for (const int layer : group.layers)
      EXPECT_EQ(group.spec, attention_spec_from_hf(gemma2, "float16", layer));
  const std::vector<LayerGroup> only = attention_groups_from_hf(tiny("llama").dump(), {});
  ASSERT_EQ(only.size(), 1u);
  EXPECT_EQ(only[0].layers, (std::vector<int>{0, 1, 2, 3}));
  EXPECT_EQ(attention_groups_from_hf(smollm2_135m().dump(), {})[0].layers, std::vector<int>{0})
      << "the config does not state the number of layers";
}

TEST(ModelConfig, LayersOfAGroupMustAscendFromZero) {
  const AttentionSpec spec = spec_of(tiny("llama"));
  EXPECT_NO_THROW(validate(LayerGroup{spec, {0, 3}}));
  const std::vector<std::vector<int>> refused = {{}, {-1}, {1, 1}, {2, 1}};
  for (const std::vector<int>& layers : refused)
    EXPECT_TRUE(throws<SpecError>([&] { validate(LayerGroup{spec, layers}); },
                                  {"layers = [", "ascending, and at least one"}));
}

struct Refusal {
  const char* pointer;  // JSON pointer of the changed value
  Json value;
  std::vector<std::string> parts;
};

TEST(ModelConfig, BadOrUnsupportedKeysAreNamed) {
  const std::vector<Refusal> refusals = {
      {"/model_type",
       "lama",
       {"model_type = \"lama\"", "types are known, such as llama, qwen3 and gemma2"}},
      {"/model_type", "gemma3", {"text_config is missing; a config of model_type \"gemma3\""}},
      {"/model_type", "deepseek_v3", {"model_type = \"deepseek_v3\": its keys", "(MLA)"}},
      {"/model_type", nullptr, {"model_type is missing"}},
      {"/num_attention_heads", nullptr, {"num_attention_heads is missing"}},
      {"/num_attention_heads", "32", {"num_attention_heads = \"32\" has the wrong type"}},
      {"/num_attention_heads", 0, {"num_attention_heads = 0"}},
      {"/num_key_value_heads", 5, {"num_q_heads = 32 with num_kv_heads = 5"}},
      {"/num_key_value_heads", 0, {"num_kv_heads = 0"}},
      {"/num_hidden_layers", 0, {"num_hidden_layers = 0; allowed are 1 to 10000"}},
      {"/num_hidden_layers", 2000000000, {"num_hidden_layers = 2000000000"}},
      {"/hidden_size", nullptr, {"hidden_size is missing"}},
      {"/head_dim", 88, {"head_dim = 88", "64, 72, 80"}},
      {"/torch_dtype", "float32", {"dtype = \"float32\"", "bfloat16, float16"}},
      {"/sliding_window", 4096, {"sliding_window = 4096 would change the result"}},
      {"/attn_logit_softcapping", 50.0, {"attn_logit_softcapping = 50.0 would change"}},
      {"/attention_multiplier", 0.5, {"attention_multiplier = 0.5 would change"}},
      {"/partial_rotary_factor", 0.5, {"partial_rotary_factor = 0.5 would change"}},
      {"/no_rope_layers", {1, 0}, {"no_rope_layers = [1,0] would change"}},
      {"/rope_scaling", 8, {"rope parameters are 8; an object is expected"}},
      {"/rope_scaling/rope_type",
       "proportional",
       {"rope_type = \"proportional\" has no kernel yet",
        "default, linear, llama3, yarn, longrope, dynamic"}},
      {"/rope_scaling/rope_type", "longrope", {"long_factor is missing"}},
      {"/rope_scaling/rope_type", "dynamic", {"rope_type \"dynamic\" with high_freq_factor = 4.0"}},
      {"/rope_scaling/rope_type", 3, {"rope_type = 3 has the wrong type"}},
      {"/rope_scaling/factor", nullptr, {"factor is missing"}},
      {"/rope_scaling/factor", "8", {"factor = \"8\" has the wrong type"}},
      {"/rope_scaling/factor", 0.5, {"factor = 0.5, allowed are 1 to"}},
      {"/rope_scaling/mscale", 0.7, {"rope_type \"llama3\" with mscale = 0.7"}},
      {"/rope_scaling/type", "linear", {"rope_type = \"llama3\" and type = \"linear\" differ"}},
      {"/rope_parameters", {{"rope_type", "default"}}, {"rope_parameters and rope_scaling differ"}},
      {"/use_bidirectional_attention", true, {"use_bidirectional_attention = true would change"}},
      {"/is_causal", false, {"is_causal = false would change the result"}},
      {"/is_causal", nullptr, {"is_causal = null would change the result"}},
      {"/dual_chunk_attention_config",
       {{"chunk_size", 262144}},
       {"dual_chunk_attention_config = {\"chunk_size\":262144} would change"}},
      {"/per_layer_config", {{"0", {{"head_dim", 64}}}}, {"per_layer_config = ", "would change"}},
      {"/layer_types", {"full_attention"}, {"layer_types = ", "with num_hidden_layers = 32"}},
      {"/rope_theta", "large", {"rope_theta = \"large\" has the wrong type"}}};
  for (const Refusal& refusal : refusals) {
    Json config = llama31_8b();
    config[Json::json_pointer(refusal.pointer)] = refusal.value;
    EXPECT_TRUE(throws<SpecError>([&] { spec_of(config); }, refusal.parts)) << refusal.pointer;
  }
}

TEST(ModelConfig, KeysThatTransformersIgnoresAreIgnoredAndLogged) {
  Json config = llama31_8b();
  config["quantization_config"] = {{"quant_method", "fp8"}};
  config["rotary_emb_base"] = 20000;
  const LogCapture log;
  set_log_level(LogLevel::kDebug);
  EXPECT_EQ(spec_of(config), spec_of(llama31_8b()));
  EXPECT_TRUE(says(log.text(), {"debug: config.json: ignored keys", "\"quantization_config\"",
                                "\"rotary_emb_base\""}));
}

TEST(ModelConfig, KeysOfOtherTypesAreNotObeyed) {
  const auto with = [](const char* type, const char* key, const Json& value) {
    Json config = tiny(type);
    config.erase("head_dim");
    const AttentionSpec before = attention_spec_from_hf(config.dump(), {}, 0);
    config[key] = value;
    return attention_spec_from_hf(config.dump(), {}, 0) == before;
  };
  EXPECT_TRUE(with("mistral", "use_sliding_window", false));
  EXPECT_TRUE(with("gemma2", "use_sliding_window", false));
  EXPECT_TRUE(with("gptj", "head_dim", 128));
  EXPECT_TRUE(with("gptj", "rope_theta", 5e5));
  EXPECT_TRUE(with("gptj", "num_key_value_heads", 4));
  EXPECT_TRUE(with("gpt_neox", "rope_theta", 5e5));
  EXPECT_TRUE(with("gpt_oss", "rope_scaling", Json::object())) << "YaRN is its default";
  EXPECT_TRUE(throws<SpecError>([&] { with("gpt_neox", "head_dim", 128); },
                                {"head_dim = 128, but model_type \"gpt_neox\"", "which is 64"}));
  EXPECT_TRUE(throws<SpecError>(
      [&] { with("mistral", "layer_types", Json(4, Json("full_attention"))); },
      {"layer 0 is \"full_attention\", but all layers", "sliding_window = 4096"}));
}

// The context of the training run is the config's own key, else that of the RoPE parameters, else
// max_position_embeddings.
TEST(ModelConfig, TheContextOfTheConfigReplacesThatOfItsRope) {
  const char* const key = "original_max_position_embeddings";
  const auto context = [&](const Json& config) { return spec_of(config).rope.parameters.at(key); };
  for (const char* type : {"llama3", "yarn"}) {
    Json config = llama31_8b();
    config["rope_scaling"]["rope_type"] = type;
    if (type == std::string("yarn"))
      for (const char* other : {"low_freq_factor", "high_freq_factor"})
        config["rope_scaling"].erase(other);
    EXPECT_EQ(context(config), 8192);
    config[key] = 4096;
    EXPECT_EQ(context(config), 4096);
    config["rope_scaling"].erase(key);
    EXPECT_EQ(context(config), 4096);
    config.erase(key);
    EXPECT_EQ(context(config), 131072);
  }
}

// Returns the RoPE variant of each layer, and "" for a layer without attention.
std::vector<std::string> ropes_of(const Json& config) {
  std::vector<std::string> ropes;
  for (const auto& spec : attention_specs_from_hf(config.dump(), {}))
    ropes.push_back(spec ? spec->rope.variant : "");
  return ropes;
}

TEST(ModelConfig, LayersWithoutAttentionHaveNoSpec) {
  Json config = tiny("lfm2");
  config.erase("head_dim");
  config["full_attn_idxs"] = {1, 3};
  EXPECT_EQ(ropes_of(config), (std::vector<std::string>{"", "neox", "", "neox"}));
  EXPECT_EQ(spec_of(config), attention_spec_from_hf(config.dump(), {}, 3));
  EXPECT_TRUE(throws<SpecError>([&] { attention_spec_from_hf(config.dump(), {}, 2); },
                                {"layer 2 has no attention", "Layers with attention: 1, 3"}));
  config["full_attn_idxs"] = Json::array();
  EXPECT_TRUE(throws<SpecError>([&] { spec_of(config); }, {"none of its layers has attention"}));
  config["full_attn_idxs"] = {"1"};
  EXPECT_TRUE(throws<SpecError>([&] { spec_of(config); }, {"full_attn_idxs = [\"1\"]"}));
  Json nemotron = tiny("nemotron_h");
  nemotron["hybrid_override_pattern"] = "M*-E*";
  EXPECT_EQ(ropes_of(nemotron), (std::vector<std::string>{"", "none", "", "", "none"}));
  nemotron["hybrid_override_pattern"] = "M?";
  EXPECT_TRUE(throws<SpecError>([&] { spec_of(nemotron); }, {"\"M?\"; its letters must be"}));
}

TEST(ModelConfig, KindsOfLayersHaveRopeOfTheirOwn) {
  Json config = tiny("gemma3_text");
  config["sliding_window_pattern"] = 2;
  config["rope_theta"] = 2e6;
  config["rope_local_base_freq"] = 2e4;
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  const auto layer = [&](int i) { return attention_spec_from_hf(config.dump(), {}, i); };
  const RopeSpec local = {"neox", 64, {{"theta", 2e4}}};
  const RopeSpec global = {"linear", 64, {{"theta", 2e6}, {"factor", 8.0}}};
  EXPECT_EQ(layer(0).rope, local);
  EXPECT_EQ(layer(1).rope, global);
  EXPECT_EQ(layer(0).mask, "sliding_window");
  for (const char* key : {"rope_theta", "rope_local_base_freq", "rope_scaling"}) config.erase(key);
  config["rope_parameters"] = {
      {"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 2e6}}},
      {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 2e4}}}};
  EXPECT_EQ(layer(0).rope, local);
  EXPECT_EQ(layer(1).rope, global);
  config["rope_parameters"] = {{"rope_theta", 1e4}};
  EXPECT_TRUE(throws<SpecError>([&] { layer(0); },
                                {"rope_parameters has rope_theta = 10000.0", "full_attention"}));
}

Json with_long_rope() {
  Json config = tiny("llama");
  config["max_position_embeddings"] = 512;
  config["rope_scaling"] = {{"rope_type", "longrope"},
                            {"short_factor", Json(32, Json(1.5))},
                            {"long_factor", Json(32, Json(2.5))},
                            {"original_max_position_embeddings", 128}};
  return config;
}

TEST(ModelConfig, TheMostTokensChooseTheListOfLongRope) {
  const Json config = with_long_rope();
  const auto rope = [&](std::optional<int> max_model_len) {
    return attention_spec_from_hf(config.dump(), {}, {}, {max_model_len}).rope;
  };
  EXPECT_EQ(rope(128).lists.at("factors"), std::vector<double>(32, 1.5));
  EXPECT_EQ(rope(129).lists.at("factors"), std::vector<double>(32, 2.5));
  EXPECT_EQ(rope({}), rope(512));
  EXPECT_NEAR(rope({}).parameters.at("attention_factor"),
              std::sqrt(1.0 + std::log(4.0) / std::log(128.0)), 1e-15);
  EXPECT_TRUE(throws<SpecError>([&] { rope(0); }, {"max_model_len = 0; it must be at least 1"}));
}

TEST(ModelConfig, DynamicScalingIsPlainRopeUpToTheOriginalContext) {
  Json config = tiny("llama");
  config["max_position_embeddings"] = 512;
  config["rope_scaling"] = {{"rope_type", "dynamic"}, {"factor", 4.0}};
  const auto rope = [&](std::optional<int> max_model_len) {
    return attention_spec_from_hf(config.dump(), {}, {}, {max_model_len}).rope;
  };
  const RopeSpec plain = {"neox", 64, {{"theta", 1e4}}};
  EXPECT_EQ(rope({}), plain);
  EXPECT_EQ(rope(512), plain);
  EXPECT_TRUE(throws<SpecError>(
      [&] { rope(513); },
      {"max_model_len = 513", "depend on the length of the request", "choose max_model_len=512"}));
}

TEST(ModelConfig, AWrapperHasTheAttentionOfItsTextConfig) {
  const Json text = llama31_8b();
  Json wrapper = {{"model_type", "llava"}, {"text_config", text}, {"vision_config", {}}};
  const LogCapture log;
  set_log_level(LogLevel::kInfo);
  EXPECT_EQ(spec_of(wrapper), spec_of(text));
  EXPECT_TRUE(says(log.text(), {"info: config.json: read text_config, of type \"llama\""}));
  wrapper["text_config"].erase("torch_dtype");
  wrapper["torch_dtype"] = "float16";
  EXPECT_EQ(spec_of(wrapper).dtype, Dtype::kFp16);
  wrapper["text_config"].erase("model_type");
  EXPECT_EQ(spec_of(wrapper).rope, spec_of(text).rope) << "llama is the type of llava's text";
  wrapper["text_config"] = {{"model_type", "llama"}};
  EXPECT_EQ(spec_of(wrapper).num_q_heads, 32) << "absent sizes are the text type's";
  wrapper["text_config"] = 3;
  EXPECT_TRUE(throws<SpecError>([&] { spec_of(wrapper); }, {"text_config = 3; an object"}));
}

TEST(ModelConfig, TextThatIsNoJsonObjectIsRefused) {
  for (const char* text : {"", "{", "[]", "3"})
    EXPECT_TRUE(throws<SpecError>([&] { attention_spec_from_hf(text, {}); },
                                  {"config.json: not a JSON object"}))
        << text;
}

TEST(ModelConfig, KeysOfTheWrongTypeAreSpecErrors) {
  Json window = qwen3_8b();
  window["use_sliding_window"] = nullptr;
  EXPECT_NO_THROW(spec_of(window)) << "null counts as absent";
  Json type = llama31_8b();
  type["rope_scaling"].erase("rope_type");
  type["rope_scaling"]["type"] = 3;
  EXPECT_TRUE(throws<SpecError>([&] { spec_of(type); }, {"type = 3 has the wrong type"}));
}

TEST(ModelConfig, NumbersAreNotRounded) {
  Json heads = llama31_8b();
  heads["num_key_value_heads"] = 8.5;
  EXPECT_TRUE(throws<SpecError>([&] { spec_of(heads); }, {"num_key_value_heads = 8.5"}));
  Json hidden = llama31_8b();
  hidden["hidden_size"] = 4100;
  EXPECT_TRUE(throws<SpecError>([&] { spec_of(hidden); }, {"hidden_size = 4100"}));
}

}  // namespace
}  // namespace lazyrope
