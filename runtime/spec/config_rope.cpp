#include "runtime/spec/config_rope.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "runtime/base/log.h"

namespace lazyrope {
namespace {

constexpr const char* kContext = "original_max_position_embeddings";
constexpr const char* kFraction = "partial_rotary_factor";

bool is_given(const Json& config, const char* key) {
  return is_set(config, key) && config[key] != Json::object();
}

// Returns the object with the parameters. As in transformers, an empty rope_scaling counts as
// absent, and an empty rope_parameters replaces the default of the model type.
Json given_parameters(const Json& config, const ModelType& model) {
  const bool has_new = is_given(config, "rope_parameters");
  const bool has_old = is_given(config, "rope_scaling");
  const bool is_default = has_new && model.defaults.contains("rope_parameters") &&
                          config["rope_parameters"] == model.defaults["rope_parameters"];
  if (has_new && has_old && !is_default && config["rope_parameters"] != config["rope_scaling"])
    refuse_config("rope_parameters and rope_scaling differ; remove the wrong one");
  if (has_old) return config["rope_scaling"];
  if (is_set(config, "rope_parameters")) return config["rope_parameters"];
  return model.defaults.value("rope_parameters", Json::object());
}

// Removes keys with the value null, except those that mean something else than absent keys.
void remove_nulls(Json& rope) {
  for (auto it = rope.begin(); it != rope.end();) {
    const bool is_absent = it->is_null() && it.key() != "factor" && it.key() != "truncate" &&
                           it.key() != "rope_theta" && it.key() != kContext;
    it = is_absent ? rope.erase(it) : std::next(it);
  }
}

void choose_type(Json& rope) {
  if (!rope.contains("rope_type"))
    rope["rope_type"] = optional<std::string>(rope, "type").value_or("default");
  if (is_set(rope, "type") && rope["type"] != rope["rope_type"])
    refuse_config(fmt::format("rope_type = {} and type = {} differ; remove the wrong one",
                              json_excerpt(rope["rope_type"]), json_excerpt(rope["type"])));
  rope.erase("type");
}

void check_is_object(const Json& rope) {
  if (!rope.is_object())
    refuse_config(fmt::format("rope parameters are {}; an object is expected", json_excerpt(rope)));
}

// Refuses rope_parameters without an object for each kind of layer. transformers does not read its
// other keys.
void check_names_of_kinds(const Json& by_kind, const ModelType& model) {
  check_is_object(by_kind);
  for (const auto& [key, value] : by_kind.items())
    if (key != "full_attention" && key != "sliding_attention")
      refuse_config(
          fmt::format("rope_parameters has {} = {}; of model_type \"{}\" it has an object "
                      "for each kind of layer: full_attention and sliding_attention",
                      printable(key), json_excerpt(value), model.name));
}

// Returns the object with the parameters of the layers of a kind. As in transformers, rope_scaling
// is that of the layers without a window, and its keys replace those of rope_parameters.
Json given_parameters_of_kind(const Json& config, const ModelType& model, LayerKind kind) {
  const char* const name = kind == LayerKind::kFull ? "full_attention" : "sliding_attention";
  const Json given = config.value("rope_parameters", Json());
  const Json by_kind =
      given.is_null() ? model.defaults.value("rope_parameters", Json::object()) : given;
  check_names_of_kinds(by_kind, model);
  Json rope = by_kind.value(name, Json());
  if (rope.is_null()) rope = {{"rope_type", "default"}};
  check_is_object(rope);
  if (kind == LayerKind::kFull && is_set(config, "rope_scaling")) {
    check_is_object(config["rope_scaling"]);
    rope.update(config["rope_scaling"]);
  }
  return rope;
}

Json theta_of(const Json& config, const ModelType& model, LayerKind kind) {
  const bool is_of_window = model.has_rope_of_kinds && kind == LayerKind::kSliding;
  const char* const key = is_of_window ? model.sliding_theta_key : model.theta_key;
  if (key != nullptr && config.contains(key)) return config[key];
  return is_of_window ? model.sliding_theta : model.theta;
}

// Removes the keys that RoPE of text does not read. The axes of M-RoPE have equal positions in
// text, so the keys that divide the pairs among them do not matter.
void remove_other_keys(Json& rope, const ModelType& model) {
  std::size_t removed = 0;
  for (const char* key : model.other_rope_keys) removed += rope.erase(key);
  if (removed > 0 && model.temperatures == Temperatures::kNone)
    log_message(LogLevel::kInfo,
                "config.json: M-RoPE is plain RoPE for text alone; documents with images need a "
                "mask_base");
}

// Returns the number of columns that are rotated, and removes partial_rotary_factor from `rope`.
int rotary_dim(const Json& config, const ModelType& model, Json& rope, int head_dim) {
  if (reads(model, "rotary_dim")) return required<int>(config, "rotary_dim");
  double fraction =
      model.fraction_key == nullptr ? 1.0 : required<double>(config, model.fraction_key);
  if (rope.contains(kFraction)) {
    const auto own = required<double>(rope, kFraction);
    if (model.fraction_key == nullptr && own != 1.0)
      refuse_config(
          fmt::format("{} = {} of RoPE would change the result; model_type \"{}\" is not "
                      "known to have one",
                      kFraction, json_excerpt(rope[kFraction]), model.name));
    fraction = own;
    rope.erase(kFraction);
  }
  if (!(fraction > 0.0 && fraction <= 1.0))
    refuse_config(fmt::format("{} = {}; it must be more than 0 and at most 1",
                              model.fraction_key == nullptr ? kFraction : model.fraction_key,
                              fraction));
  return static_cast<int>(head_dim * fraction);
}

// The parameters of a layer's RoPE depend on this context, besides the object that holds them.
struct RopeContext {
  const Json& config;
  const RopeUse& use;
  bool has_mscale;
  int rotary_dim;

  double max_position_embeddings() const {
    return required<double>(config, "max_position_embeddings");
  }
  // Returns the most tokens of a request.
  double max_tokens() const {
    return use.max_model_len ? *use.max_model_len : max_position_embeddings();
  }
};

// The context of the training run is the config's own key, or else that of `rope`, or else
// max_position_embeddings.
void complete_context(const RopeContext& context, Json& rope) {
  if (context.config.contains(kContext))
    rope[kContext] = context.config[kContext];
  else if (!rope.contains(kContext))
    rope[kContext] = context.max_position_embeddings();
}

// transformers computes the factor if it is null, and requires the key.
void complete_factor(const RopeContext& context, Json& rope) {
  if (rope.contains("factor") && rope["factor"].is_null())
    rope["factor"] = context.max_position_embeddings() / required<double>(rope, kContext);
}

void complete_attention_factor(Json& rope) {
  const double mscale = optional<double>(rope, "mscale").value_or(0.0);
  const double all_dim = optional<double>(rope, "mscale_all_dim").value_or(0.0);
  rope.erase("mscale");
  rope.erase("mscale_all_dim");
  if (rope.contains("attention_factor") || mscale == 0.0 || all_dim == 0.0) return;
  const double log_factor = std::log(std::max(required<double>(rope, "factor"), 1.0));
  rope["attention_factor"] = (0.1 * mscale * log_factor + 1.0) / (0.1 * all_dim * log_factor + 1.0);
}

// Adds the parameters of YaRN that the config leaves out, with the defaults of transformers.
void complete_yarn(const RopeContext& context, Json& rope) {
  complete_context(context, rope);
  complete_factor(context, rope);
  complete_attention_factor(rope);
  for (const char* key : {"beta_fast", "beta_slow"})
    if (rope.contains(key) && rope[key] == 0) rope.erase(key);
  if (rope.contains("truncate")) rope["truncate"] = flag(rope, "truncate") ? 1.0 : 0.0;
}

// transformers computes the attention factor of LongRoPE from the ratio of the two contexts, if
// "factor" does not say it: arXiv 2402.13753, section 3.3.
double attention_factor_of_longrope(const RopeContext& context, const Json& rope, double original) {
  if (rope.contains("attention_factor")) return required<double>(rope, "attention_factor");
  const double factor =
      optional<double>(rope, "factor").value_or(context.max_position_embeddings() / original);
  return factor <= 1.0 ? 1.0 : std::sqrt(1.0 + std::log(factor) / std::log(original));
}

// The models of PhiMoE have an attention factor of their own for each list. transformers 5.17
// computes with the short list at any length, the models' own code with the long one, so there is
// no answer beyond the original context.
void use_mscale(Json& rope, bool is_long, double original) {
  if (is_long)
    refuse_config(fmt::format(
        "rope_type \"longrope\" with short_mscale: implementations of the model differ beyond {0} "
        "tokens; choose max_model_len={0} or less",
        original));
  rope["attention_factor"] = required<double>(rope, "short_mscale");
  rope.erase("short_mscale");
  rope.erase("long_mscale");
}

Json list_of_numbers(const Json& rope, const char* key) {
  if (!is_set(rope, key)) config_json::refuse_missing(key);
  const auto is_number = [](const Json& value) { return value.is_number(); };
  if (!rope[key].is_array() || !std::ranges::all_of(rope[key], is_number))
    refuse_config(
        fmt::format("{} = {}; a list of numbers is expected", key, json_excerpt(rope[key])));
  return rope[key];
}

// Chooses the list of factors by the most tokens of a request. A request beyond the original
// context has the long list for all of its tokens.
void complete_longrope(const RopeContext& context, Json& rope) {
  complete_context(context, rope);
  const auto original = required<double>(rope, kContext);
  if (!(original > 1.0))
    refuse_config(fmt::format("{} = {}; it must be more than 1", kContext, original));
  const bool is_long = context.max_tokens() > original;
  if (context.has_mscale) use_mscale(rope, is_long, original);
  rope["attention_factor"] = attention_factor_of_longrope(context, rope, original);
  if (rope["attention_factor"] == 1.0) rope.erase("attention_factor");
  rope["factors"] = list_of_numbers(rope, is_long ? "long_factor" : "short_factor");
  log_message(
      LogLevel::kInfo,
      "config.json: LongRoPE with the {} list, for requests of up to {} tokens; the original "
      "context is {} tokens",
      is_long ? "long" : "short", context.max_tokens(), original);
  for (const char* key : {"short_factor", "long_factor", "factor", kContext}) rope.erase(key);
}

// Returns the theta of a request of `tokens` tokens, more than the original context: dynamic NTK
// scaling, as transformers computes it.
double theta_of_dynamic(const RopeContext& context, const Json& rope, double tokens) {
  const auto factor = required<double>(rope, "factor");
  const double ratio = factor * tokens / context.max_position_embeddings() - (factor - 1.0);
  return required<double>(rope, "rope_theta") *
         std::pow(ratio, context.rotary_dim / (context.rotary_dim - 2.0));
}

// Dynamic NTK scaling is plain RoPE up to max_position_embeddings. Beyond it, the frequencies of
// all tokens depend on the length of the request, so keys must be stored raw.
void complete_dynamic(const RopeContext& context, Json& rope) {
  const double original = context.max_position_embeddings();
  (void)required<double>(rope, "factor");
  if (context.max_tokens() > original && context.use.key_form == KeyForm::kLocal)
    refuse_config(fmt::format(
        "rope_type \"dynamic\" with max_model_len = {}: beyond {} tokens the frequencies depend on "
        "the length of the request, so stored keys would be wrong; choose max_model_len={}, or "
        "store keys with key_form=\"raw\"",
        context.max_tokens(), original, original));
  if (context.max_tokens() > original)
    rope["rope_theta"] = theta_of_dynamic(context, rope, context.max_tokens());
  else
    log_message(LogLevel::kInfo,
                "config.json: rope_type \"dynamic\" is plain RoPE for requests of up to {} tokens; "
                "longer ones need raw keys",
                original);
  rope.erase("factor");
}

// A rope_type, and the variant and parameters of RopeSpec that it stands for.
struct RopeType {
  const char* name;
  std::string_view variant;  // empty: the pairing of the model type
  Keys parameters = {};
  Keys optional = {};
  void (*complete)(const RopeContext& context, Json& rope) = [](const RopeContext&, Json&) {};
  Keys lists = {};
  std::string_view gptj_variant = {};  // that of model types with the pairing "gptj"; empty: none
};

RopeType longrope(const char* name) {
  return {.name = name,
          .variant = "longrope",
          .optional = {"attention_factor"},
          .complete = complete_longrope,
          .lists = {"factors"}};
}

const std::vector<RopeType>& rope_types() {
  static const std::vector<RopeType> rows = {
      {"default", ""},
      {"mrope", ""},  // RoPE with positions of images, which is plain RoPE for text
      {"linear", "linear", {"factor"}},
      {.name = "llama3",
       .variant = "llama3",
       .parameters = {"factor", "low_freq_factor", "high_freq_factor", kContext},
       .complete = complete_context,
       .gptj_variant = "llama3_gptj"},
      {.name = "yarn",
       .variant = "yarn",
       .parameters = {"factor", kContext},
       .optional = {"beta_fast", "beta_slow", "truncate", "attention_factor"},
       .complete = complete_yarn},
      longrope("longrope"),
      longrope("su"),  // its name in the first configs of Phi-3
      {.name = "dynamic", .variant = "", .complete = complete_dynamic}};
  return rows;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_rope_types() { (void)rope_types(); }

const RopeType& rope_type(const std::string& name, const ModelType& model) {
  const auto is_name = [&](const char* known) { return name == known; };
  if (std::ranges::any_of(model.rope_types, is_name))
    return *std::ranges::find_if(rope_types(), [&](const auto& row) { return name == row.name; });
  refuse_config(fmt::format("rope_type = {} has no kernel yet; known are: {}", json_excerpt(name),
                            fmt::join(model.rope_types, ", ")));
}

std::string variant_of(const RopeType& type, const ModelType& model) {
  if (type.variant.empty()) return std::string(model.pairing);
  return std::string(model.pairing == "gptj" ? type.gptj_variant : type.variant);
}

void take_parameters(const RopeType& type, Json& rope, RopeSpec& spec) {
  const auto take = [&](const char* key) {
    spec.parameters[key] = required<double>(rope, key);
    rope.erase(key);
  };
  for (const char* key : type.parameters) take(key);
  for (const char* key : type.optional)
    if (rope.contains(key)) take(key);
}

void take_lists(const RopeType& type, Json& rope, RopeSpec& spec) {
  for (const char* key : type.lists) {
    spec.lists[key] = rope[key].get<std::vector<double>>();
    rope.erase(key);
  }
}

}  // namespace

Json rope_parameters_of(const Json& config, const ModelType& model, LayerKind kind) {
  Json rope = model.has_rope_of_kinds ? given_parameters_of_kind(config, model, kind)
                                      : given_parameters(config, model);
  check_is_object(rope);
  remove_nulls(rope);
  choose_type(rope);
  // transformers reads truncate outside of the object of a kind, where no config has it.
  if (model.has_rope_of_kinds && rope.contains("truncate") && !flag(rope, "truncate"))
    refuse_config(
        "truncate = false of RoPE of a kind of layer: implementations of the model differ; remove "
        "it");
  if (!rope.contains("rope_theta")) rope["rope_theta"] = theta_of(config, model, kind);
  return rope;
}

RopeSpec rope_of_config(const Json& config, const ModelType& model, LayerKind kind, int head_dim,
                        const RopeUse& use) {
  Json rope = rope_parameters_of(config, model, kind);
  remove_other_keys(rope, model);
  const RopeType& type = rope_type(required<std::string>(rope, "rope_type"), model);
  RopeSpec spec;
  spec.variant = variant_of(type, model);
  spec.rotary_dim = rotary_dim(config, model, rope, head_dim);
  type.complete({config, use, model.has_mscale, spec.rotary_dim}, rope);
  spec.parameters["theta"] = required<double>(rope, "rope_theta");
  take_parameters(type, rope, spec);
  take_lists(type, rope, spec);
  rope.erase("rope_type");
  rope.erase("rope_theta");
  if (!rope.empty())
    refuse_config(fmt::format("rope_type \"{}\" with {} = {}, which is not known", type.name,
                              printable(rope.begin().key()), json_excerpt(*rope.begin())));
  return spec;
}

}  // namespace lazyrope
