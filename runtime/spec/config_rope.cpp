#include "runtime/spec/config_rope.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string>

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

Json rope_parameters(const Json& config, const ModelType& model) {
  Json rope = given_parameters(config, model);
  if (!rope.is_object())
    refuse_config(fmt::format("rope parameters are {}; an object is expected", json_excerpt(rope)));
  remove_nulls(rope);
  choose_type(rope);
  if (!rope.contains("rope_theta"))
    rope["rope_theta"] =
        config.contains(model.theta_key) ? config[model.theta_key] : Json(model.theta);
  return rope;
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

// The context of the training run is the config's own key, or else that of `rope`, or else
// max_position_embeddings.
void complete_context(const Json& config, Json& rope) {
  if (config.contains(kContext))
    rope[kContext] = config[kContext];
  else if (!rope.contains(kContext))
    rope[kContext] = required<double>(config, "max_position_embeddings");
}

// transformers computes the factor if it is null, and requires the key.
void complete_factor(const Json& config, Json& rope) {
  if (rope.contains("factor") && rope["factor"].is_null())
    rope["factor"] =
        required<double>(config, "max_position_embeddings") / required<double>(rope, kContext);
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
void complete_yarn(const Json& config, Json& rope) {
  complete_context(config, rope);
  complete_factor(config, rope);
  complete_attention_factor(rope);
  for (const char* key : {"beta_fast", "beta_slow"})
    if (rope.contains(key) && rope[key] == 0) rope.erase(key);
  if (rope.contains("truncate")) rope["truncate"] = flag(rope, "truncate") ? 1.0 : 0.0;
}

// A rope_type, and the variant and parameters of RopeSpec that it stands for.
struct RopeType {
  const char* name;
  std::string_view variant;  // empty: the pairing of the model type
  Keys parameters = {};
  Keys optional = {};
  void (*complete)(const Json& config, Json& rope) = [](const Json&, Json&) {};
};

const std::vector<RopeType>& rope_types() {
  static const std::vector<RopeType> rows = {
      {"default", ""},
      {"linear", "linear", {"factor"}},
      {.name = "llama3",
       .variant = "llama3",
       .parameters = {"factor", "low_freq_factor", "high_freq_factor", kContext},
       .complete = complete_context},
      {.name = "yarn",
       .variant = "yarn",
       .parameters = {"factor", kContext},
       .optional = {"beta_fast", "beta_slow", "truncate", "attention_factor"},
       .complete = complete_yarn}};
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

void take_parameters(const RopeType& type, Json& rope, RopeSpec& spec) {
  const auto take = [&](const char* key) {
    spec.parameters[key] = required<double>(rope, key);
    rope.erase(key);
  };
  for (const char* key : type.parameters) take(key);
  for (const char* key : type.optional)
    if (rope.contains(key)) take(key);
}

}  // namespace

RopeSpec rope_of_config(const Json& config, const ModelType& model, int head_dim) {
  Json rope = rope_parameters(config, model);
  const RopeType& type = rope_type(required<std::string>(rope, "rope_type"), model);
  RopeSpec spec;
  spec.variant = type.variant.empty() ? model.pairing : type.variant;
  spec.rotary_dim = rotary_dim(config, model, rope, head_dim);
  spec.parameters["theta"] = required<double>(rope, "rope_theta");
  type.complete(config, rope);
  take_parameters(type, rope, spec);
  rope.erase("rope_type");
  rope.erase("rope_theta");
  if (!rope.empty())
    refuse_config(fmt::format("rope_type \"{}\" with {} = {}, which is not known", type.name,
                              printable(rope.begin().key()), json_excerpt(*rope.begin())));
  return spec;
}

}  // namespace lazyrope
