#include "runtime/spec/wrapper_types.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>

#include "runtime/base/log.h"

namespace lazyrope {
namespace {

// A model type whose config.json has the config of its text model in text_config.
struct WrapperType {
  std::string_view name;
  std::string_view text_type;  // the model_type of a text_config without one
  bool is_fixed = false;       // transformers ignores the model_type of text_config
  bool may_be_flat = false;    // without text_config, the config itself is that of the text model
  Json text_defaults = Json::object();  // the wrapper's own values of keys that text_config lacks
};

Json text_defaults_of_voxtral() {
  return {{"hidden_size", 3072}, {"num_hidden_layers", 30},           {"num_key_value_heads", 8},
          {"head_dim", 128},     {"max_position_embeddings", 131072}, {"rope_theta", 1e8}};
}

Json text_defaults_of_glmasr() {
  return {{"hidden_size", 2048},
          {"num_hidden_layers", 28},
          {"num_attention_heads", 16},
          {"num_key_value_heads", 4},
          {"max_position_embeddings", 8192}};
}

const std::vector<WrapperType>& wrappers() {
  static const std::vector<WrapperType> rows = {
      {"audioflamingo3", "qwen2"},
      {"aya_vision", "cohere2"},
      {"cohere2_vision", "cohere2"},
      {"deepseek_vl", "llama"},
      {"deepseek_vl_hybrid", "llama"},
      {"exaone4_5", "exaone4"},
      {"fast_vlm", "qwen2"},
      {"fun_asr_nano", "qwen3"},
      {"fuyu", "persimmon"},
      {.name = "gemma3", .text_type = "gemma3_text", .is_fixed = true},
      {"glm46v", "glm4v_text"},
      {.name = "glm4v", .text_type = "glm4v_text", .is_fixed = true},
      {.name = "glm4v_moe", .text_type = "glm4v_moe_text", .is_fixed = true},
      {.name = "glmasr", .text_type = "llama", .text_defaults = text_defaults_of_glmasr()},
      {"glmga", "glm4v_text"},
      {"got_ocr2", "qwen2"},
      {"granite_speech", "granite"},
      {"granite_speech_plus", "granite"},
      {"idefics2", "mistral"},
      {"idefics3", "llama"},
      {"internvl", "qwen2"},
      {"janus", "llama"},
      {"lfm2_vl", "lfm2"},
      {"lighton_ocr", "qwen3"},
      {.name = "llama4", .text_type = "llama4_text", .is_fixed = true},
      {"llava", "llama"},
      {"llava_next", "llama"},
      {"llava_next_video", "llama"},
      {"llava_onevision", "qwen2"},
      {"mistral3", "mistral"},
      {"musicflamingo", "qwen2"},
      {"ovis2", "qwen2"},
      {"perception_lm", "llama"},
      {"pp_chart2table", "qwen2"},
      {"qianfan_ocr", "qwen3"},
      {.name = "qwen2_5_vl", .text_type = "qwen2_5_vl_text", .is_fixed = true, .may_be_flat = true},
      {"qwen2_audio", "qwen2"},
      {.name = "qwen2_vl", .text_type = "qwen2_vl_text", .is_fixed = true, .may_be_flat = true},
      {.name = "qwen3_5", .text_type = "qwen3_5_text", .is_fixed = true},
      {.name = "qwen3_5_moe", .text_type = "qwen3_5_moe_text", .is_fixed = true},
      {"qwen3_asr", "qwen3"},
      {.name = "qwen3_vl", .text_type = "qwen3_vl_text", .is_fixed = true},
      {.name = "qwen3_vl_moe", .text_type = "qwen3_vl_moe_text", .is_fixed = true},
      {"shieldgemma2", "gemma3_text"},
      {"smolvlm", "llama"},
      {"vibevoice", "qwen2"},
      {"vibevoice_asr", "qwen2"},
      {"video_llava", "llama"},
      {"vipllava", "llama"},
      {.name = "voxtral", .text_type = "llama", .text_defaults = text_defaults_of_voxtral()},
  };
  return rows;
}

// Returns what transformers takes for sizes that a text_config leaves out. Wrappers' configs hold
// only what differs from the defaults; configs of text models hold all sizes.
Json default_sizes(std::string_view text_type) {
  const auto sizes = [](int hidden_size, int heads, int layers, const Json& kv_heads) {
    return Json{{"hidden_size", hidden_size},
                {"num_attention_heads", heads},
                {"num_hidden_layers", layers},
                {"num_key_value_heads", kv_heads}};
  };
  if (text_type == "llama") return sizes(4096, 32, 32, nullptr);
  if (text_type == "mistral") return sizes(4096, 32, 32, 8);
  if (text_type == "qwen2" || text_type == "qwen3") return sizes(4096, 32, 32, 32);
  if (text_type == "gemma3_text") return sizes(2304, 8, 26, 4);
  return Json::object();
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_wrappers() { (void)wrappers(); }

// Returns the row of the config's model_type, or null if it is no wrapper.
const WrapperType* wrapper_of(const Json& config) {
  const auto type = config.find("model_type");
  if (type == config.end() || !type->is_string()) return nullptr;
  const auto row = std::ranges::find(wrappers(), type->get<std::string>(), &WrapperType::name);
  return row == wrappers().end() ? nullptr : &*row;
}

// The dtype of a wrapper is that of its text model, unless this has one of its own.
void inherit_dtype(const Json& config, Json& text) {
  if (is_set(text, "dtype") || is_set(text, "torch_dtype")) return;
  for (const char* key : {"dtype", "torch_dtype"})
    if (is_set(config, key)) text[key] = config[key];
}

Json text_of(const Json& config, const WrapperType& wrapper) {
  if (wrapper.may_be_flat && !is_set(config, "text_config")) return config;
  if (!is_set(config, "text_config"))
    refuse_config(
        fmt::format("text_config is missing; a config of model_type \"{}\" has one", wrapper.name));
  if (!config["text_config"].is_object())
    refuse_config(fmt::format("text_config = {}; an object is expected",
                              json_excerpt(config["text_config"])));
  return config["text_config"];
}

}  // namespace

Json text_config_of(Json config) {
  const WrapperType* const wrapper = wrapper_of(config);
  if (wrapper == nullptr) return config;
  Json text = text_of(config, *wrapper);
  inherit_dtype(config, text);
  if (wrapper->is_fixed || !is_set(text, "model_type")) text["model_type"] = wrapper->text_type;
  const auto type = required<std::string>(text, "model_type");
  Json complete = default_sizes(type);
  complete.update(wrapper->text_defaults);
  complete.update(text);
  log_message(LogLevel::kInfo,
              "config.json: read text_config, of type {}: the attention is that of text, for which "
              "the positions of images and audio do not matter",
              json_excerpt(type));
  return complete;
}

}  // namespace lazyrope
