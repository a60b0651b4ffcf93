// Random changes of configs and of their text: attention_specs_from_hf returns valid specs, or
// throws a SpecError of moderate length. `make soak` runs more of them.

#include <gtest/gtest.h>

#include <exception>
#include <random>
#include <string>
#include <vector>

#include "codegen/error.h"
#include "runtime/base/config.h"
#include "runtime/spec/model_config.h"
#include "runtime/spec/model_types.h"

namespace lazyrope {
namespace {

class ConfigFuzzer {
 public:
  explicit ConfigFuzzer(unsigned seed) : random_(seed) {
    for (const ModelType& type : model_types())
      keys_.insert(keys_.end(), type.reads.begin(), type.reads.end());
    for (const char* key : {"model_type", "hidden_size", "num_attention_heads", "num_hidden_layers",
                            "layer_types", "dtype", "is_causal", "per_layer_config", "stray"})
      keys_.emplace_back(key);
  }

  // Returns the text of a config after a few changes.
  std::string text() {
    Json config = base();
    for (int changes = below(4); changes > 0; --changes) change(config);
    std::string text = config.dump();
    for (int edits = below(3) == 0 ? 1 + below(3) : 0; edits > 0; --edits) edit(text);
    return text;
  }

 private:
  int below(int end) { return std::uniform_int_distribution(0, end - 1)(random_); }

  template <class T>
  const T& one_of(const std::vector<T>& values) {
    return values[static_cast<std::size_t>(below(static_cast<int>(values.size())))];
  }

  Json base() {
    const Json text = text_base();
    if (below(4) != 0) return text;
    static const std::vector<std::string> wrappers = {"llava", "qwen2_vl", "gemma3", "voxtral"};
    return {{"model_type", one_of(wrappers)}, {"text_config", text}};
  }

  Json text_base() {
    const ModelType& type = one_of(model_types());
    return {{"model_type", type.name},  {"hidden_size", 512},     {"num_attention_heads", 8},
            {"num_key_value_heads", 2}, {"num_hidden_layers", 4}, {"max_position_embeddings", 512},
            {"head_dim", 64},           {"rope_scaling", rope()}};
  }

  Json rope() {
    static const std::vector<Json> ropes = {
        nullptr,
        {{"rope_type", "default"}, {"rope_theta", 1e6}},
        {{"rope_type", "linear"}, {"factor", 4.0}},
        {{"rope_type", "llama3"},
         {"factor", 8.0},
         {"low_freq_factor", 1.0},
         {"high_freq_factor", 4.0}},
        {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 128}},
        {{"rope_type", "dynamic"}, {"factor", 4.0}},
        {{"rope_type", "longrope"},
         {"short_factor", Json(32, Json(1.5))},
         {"long_factor", Json(32, Json(2.5))},
         {"original_max_position_embeddings", 128}}};
    return one_of(ropes);
  }

  Json scalar() {
    static const std::vector<Json> values = {nullptr,
                                             true,
                                             false,
                                             0,
                                             1,
                                             -1,
                                             4,
                                             64,
                                             1000,
                                             2147483647,
                                             2147483648U,
                                             -2147483649LL,
                                             18446744073709551615U,
                                             0.0,
                                             0.5,
                                             1.0,
                                             -0.25,
                                             1e300,
                                             1e-300,
                                             "",
                                             "yarn",
                                             "full_attention",
                                             "sliding_attention",
                                             "NaN",
                                             "float16",
                                             "\xc3\xa9\xf0\x9f\x98\x80"};
    return one_of(values);
  }

  Json value(int depth) {
    const int kind = below(6);
    if (depth == 0 || kind < 3) return scalar();
    Json result = kind == 3 ? rope() : kind == 4 ? Json::array() : Json::object();
    for (int i = below(5); i > 0; --i) {
      if (result.is_array())
        result.push_back(value(depth - 1));
      else
        result[one_of(keys_)] = value(depth - 1);
    }
    return result;
  }

  void change(Json& config) {
    Json& target =
        below(3) == 0 && config["rope_scaling"].is_object() ? config["rope_scaling"] : config;
    if (below(6) == 0 && !target.empty()) {
      auto it = target.begin();
      std::advance(it, below(static_cast<int>(target.size())));
      target.erase(it);
    } else {
      target[one_of(keys_)] = value(below(6));
    }
  }

  void edit(std::string& text) {
    static const std::vector<std::string> pieces = {"[",    "]",       "{",   "}",         "\"",
                                                    "\\",   ",",       "NaN", "-Infinity", "1e999",
                                                    "\xff", "\\ud800", "\x01"};
    const auto at = static_cast<std::size_t>(below(static_cast<int>(text.size()) + 1));
    switch (below(4)) {
      case 0:
        text.resize(at);
        break;
      case 1:
        text.insert(at,
                    std::string(static_cast<std::size_t>(below(3000)), below(2) == 0 ? '[' : '{'));
        break;
      case 2:
        if (at < text.size()) text[at] = static_cast<char>(below(256));
        break;
      default:
        text.insert(at, one_of(pieces));
    }
  }

  std::mt19937 random_;
  std::vector<std::string> keys_;
};

// Returns the number of configs that were accepted.
int try_configs(unsigned seed, int count) {
  ConfigFuzzer fuzzer(seed);
  int accepted = 0;
  for (int i = 0; i < count; ++i) {
    const std::string text = fuzzer.text();
    try {
      for (const auto& spec : attention_specs_from_hf(text, {}))
        if (spec) validate(*spec);
      ++accepted;
    } catch (const SpecError& error) {
      EXPECT_LT(std::string_view(error.what()).size(), 1500u) << text;
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what() << "\n" << text;
    }
  }
  return accepted;
}

TEST(ConfigFuzz, ChangedConfigsGiveSpecsOrASpecError) {
  const bool is_long = process_environment("LAZYROPE_SOAK").has_value();
  const int count = is_long ? 1'000'000 : 5000;
  const int accepted = try_configs(is_long ? std::random_device()() : 2606u, count);
  EXPECT_GT(accepted, count / 10);
  EXPECT_LT(accepted, count * 9 / 10);
}

}  // namespace
}  // namespace lazyrope
