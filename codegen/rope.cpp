#include "codegen/rope.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <string_view>
#include <utility>

#include "codegen/error.h"
#include "codegen/registry.h"

namespace lazyrope {
namespace {

constexpr double kLargest = 1e30;
constexpr int kMultipleOf8From = 128;  // smaller rotary_dims are multiples of 4

std::vector<double> no_frequencies(const RopeSpec&) { return {}; }

// Returns theta^(-2i / rotary_dim) for each pair i: RoFormer, arXiv 2104.09864, section 3.2.2.
std::vector<double> plain_frequencies(const RopeSpec& rope) {
  const int rotary_dim = rope.rotary_dim;
  const double theta = rope.parameters.at("theta");
  std::vector<double> w(static_cast<std::size_t>(rotary_dim / 2));
  for (std::size_t i = 0; i < w.size(); ++i)
    w[i] = std::pow(theta, -2.0 * static_cast<double>(i) / rotary_dim);
  return w;
}

// Llama 3.1 divides the frequencies of long waves by `factor` and keeps those of short waves.
// Between them it interpolates ("The Llama 3 Herd of Models", and the published reference code).
std::vector<double> llama3_frequencies(const RopeSpec& rope) {
  const RopeParameters& p = rope.parameters;
  const double context = p.at("original_max_position_embeddings");
  const double low = p.at("low_freq_factor");
  const double high = p.at("high_freq_factor");
  std::vector<double> w = plain_frequencies(rope);
  for (double& x : w) {
    const double wavelength = 2.0 * std::numbers::pi / x;
    const double ratio = context / wavelength;
    const double smooth = high > low    ? std::clamp((ratio - low) / (high - low), 0.0, 1.0)
                          : ratio < low ? 0.0
                                        : 1.0;
    x = (1.0 - smooth) * x / p.at("factor") + smooth * x;
  }
  return w;
}

// Equal factors leave no frequencies to interpolate, as in Llama 4 Scout.
void check_llama3(const RopeParameters& p) {
  if (p.at("high_freq_factor") >= p.at("low_freq_factor")) return;
  throw SpecError(fmt::format(
      "rope \"llama3\": high_freq_factor = {} with low_freq_factor = {}; it must be at least that",
      p.at("high_freq_factor"), p.at("low_freq_factor")));
}

// Divides all frequencies by `factor`: position interpolation, arXiv 2306.15595.
std::vector<double> linear_frequencies(const RopeSpec& rope) {
  std::vector<double> w = plain_frequencies(rope);
  for (double& x : w) x /= rope.parameters.at("factor");
  return w;
}

double value_or(const RopeParameters& given, std::string_view name, double default_value) {
  const auto it = given.find(name);
  return it == given.end() ? default_value : it->second;
}

constexpr double kBetaFast = 32.0;
constexpr double kBetaSlow = 1.0;

// YaRN (arXiv 2309.00071, section 3.2): pairs that make more than beta_fast revolutions within the
// original context keep their frequency. The frequencies of pairs that make fewer than beta_slow
// are divided by `factor`. Between them the divisor is interpolated over the index of the pair, as
// in the published code.
std::vector<double> yarn_frequencies(const RopeSpec& rope) {
  const int rotary_dim = rope.rotary_dim;
  const RopeParameters& p = rope.parameters;
  const double theta = p.at("theta");
  const double context = p.at("original_max_position_embeddings");
  const auto pair_of = [&](double revolutions) {
    return rotary_dim * std::log(context / (revolutions * 2.0 * std::numbers::pi)) /
           (2.0 * std::log(theta));
  };
  double first = pair_of(value_or(p, "beta_fast", kBetaFast));
  double last = pair_of(value_or(p, "beta_slow", kBetaSlow));
  if (value_or(p, "truncate", 1.0) != 0.0) {
    first = std::floor(first);
    last = std::ceil(last);
  }
  first = std::max(first, 0.0);
  last = std::min(last, rotary_dim - 1.0);
  if (first == last) last += 0.001;
  std::vector<double> w = plain_frequencies(rope);
  for (std::size_t i = 0; i < w.size(); ++i) {
    const double slowed = std::clamp((static_cast<double>(i) - first) / (last - first), 0.0, 1.0);
    w[i] *= slowed / p.at("factor") + (1.0 - slowed);
  }
  return w;
}

// Divides the frequency of each pair by a number of its own: LongRoPE, arXiv 2402.13753, section 3.
std::vector<double> longrope_frequencies(const RopeSpec& rope) {
  std::vector<double> w = plain_frequencies(rope);
  const std::vector<double>& factors = rope.lists.at("factors");
  for (std::size_t i = 0; i < w.size(); ++i) w[i] /= factors[i];
  return w;
}

// Returns YaRN's attention factor: arXiv 2309.00071, section 3.4.
double yarn_attention_factor(const RopeParameters& p) {
  return value_or(p, "attention_factor", 0.1 * std::log(p.at("factor")) + 1.0);
}

// The interpolation divides by log(theta), and by the distance of two pairs: one makes beta_fast
// revolutions and the other beta_slow.
void check_yarn(const RopeParameters& p) {
  if (p.at("theta") <= 1.0)
    throw SpecError(
        fmt::format("rope \"yarn\": theta = {}; it must be greater than 1", p.at("theta")));
  const double fast = value_or(p, "beta_fast", kBetaFast);
  const double slow = value_or(p, "beta_slow", kBetaSlow);
  if (fast <= slow)
    throw SpecError(fmt::format(
        "rope \"yarn\": beta_fast = {} with beta_slow = {}; it must be greater", fast, slow));
  const double truncate = value_or(p, "truncate", 1.0);
  if (truncate != 0.0 && truncate != 1.0)
    throw SpecError(fmt::format("rope \"yarn\": truncate = {}; allowed are 0 and 1", truncate));
}

// Parameters that several variants have.
RopeParameter theta() { return {"theta", "base of the frequencies", 1.0, kLargest}; }
RopeParameter original_context() {
  return {"original_max_position_embeddings", "original context in tokens", 1.0, kLargest};
}
RopeParameter attention_factor() {
  return {"attention_factor", "factor of the rotated pairs of queries and keys", 1e-3, 1e3, 1.0};
}

std::vector<RopeParameter> linear_parameters() {
  return {theta(), {"factor", "divisor of positions", 1.0, kLargest}, attention_factor()};
}

std::vector<RopeParameter> llama3_parameters() {
  return {
      theta(),
      {"factor", "divisor of low frequencies", 1.0, kLargest},
      {"low_freq_factor", "original context / wavelength up to which frequencies are low", 0.0,
       kLargest},
      {"high_freq_factor", "original context / wavelength from which frequencies are high", 0.0,
       kLargest},
      original_context(),
      attention_factor(),
  };
}

std::vector<RopeParameter> yarn_parameters() {
  return {
      theta(),
      {"factor", "divisor of low frequencies", 1.0, kLargest},
      original_context(),
      {"beta_fast", "revolutions in the original context from which frequencies are high", 1e-3,
       kLargest, kBetaFast},
      {"beta_slow", "revolutions in the original context up to which frequencies are low", 1e-3,
       kLargest, kBetaSlow},
      {"truncate", "1: the interpolation begins and ends at whole pairs; 0: anywhere", 0.0, 1.0,
       1.0},
      {"attention_factor",
       "factor of the rotated pairs of queries and keys; 0.1 ln(factor) + 1 if not given", 1e-3,
       1e3, 1.0},
  };
}

constexpr const char* kHalf = "ops/rope/half.cuh";
constexpr const char* kInterleaved = "ops/rope/interleaved.cuh";

std::vector<RopeVariant> built_in() {
  return {
      {.name = "none",
       .meaning = "no rotation",
       .pairing = "ops/rope/none.cuh",
       .parameters = {},
       .frequencies = no_frequencies},
      {.name = "neox",
       .meaning =
           "column i rotates with column i + rotary_dim / 2 (GPT-NeoX, Llama, Qwen, Mistral)",
       .pairing = kHalf,
       .parameters = {theta(), attention_factor()},
       .frequencies = plain_frequencies},
      {.name = "gptj",
       .meaning = "column 2i rotates with column 2i + 1 (RoFormer, GPT-J, GLM, Cohere)",
       .pairing = kInterleaved,
       .parameters = {theta(), attention_factor()},
       .frequencies = plain_frequencies},
      {.name = "linear",
       .meaning = "neox with positions divided by a factor",
       .pairing = kHalf,
       .parameters = linear_parameters(),
       .frequencies = linear_frequencies},
      {.name = "llama3",
       .meaning = "neox with Llama 3.1's scaling of long waves",
       .pairing = kHalf,
       .parameters = llama3_parameters(),
       .frequencies = llama3_frequencies,
       .check = check_llama3},
      {.name = "llama3_gptj",
       .meaning = "gptj with Llama 3.1's scaling of long waves (Llama 4)",
       .pairing = kInterleaved,
       .parameters = llama3_parameters(),
       .frequencies = llama3_frequencies,
       .check = check_llama3},
      {.name = "yarn",
       .meaning = "neox with YaRN's scaling, by a pair's revolutions within the first context "
                  "(gpt-oss, Qwen beyond 32k)",
       .pairing = kHalf,
       .parameters = yarn_parameters(),
       .frequencies = yarn_frequencies,
       .attention_factor = yarn_attention_factor,
       .check = check_yarn},
      {.name = "longrope",
       .meaning = "neox with a divisor for each pair: LongRoPE's short or long list (Phi-3 and "
                  "Phi-4-mini beyond 4k)",
       .pairing = kHalf,
       .parameters = {theta(), attention_factor()},
       .frequencies = longrope_frequencies,
       .lists = {{"factors", "divisor of the frequency of each pair", 1e-3, 1e6}}},
  };
}

Registry<RopeVariant>& rope_registry() {
  static Registry<RopeVariant> instance("rope variant", built_in());
  return instance;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_rope_registry() { (void)rope_registry(); }

void validate_length(const RopeVariant& row, const RopeList& list, std::size_t given,
                     int rotary_dim) {
  if (std::cmp_not_equal(given, rotary_dim / 2))
    throw SpecError(
        fmt::format("rope \"{}\": {} has {} numbers with rotary_dim = {}; it must have {}, one for "
                    "each pair of columns",
                    row.name, list.name, given, rotary_dim, rotary_dim / 2));
}

void validate_lists(const RopeVariant& row, const RopeSpec& rope) {
  for (const RopeList& list : row.lists) {
    const auto given = rope.lists.find(list.name);
    if (given == rope.lists.end())
      throw SpecError(
          fmt::format("rope \"{}\" needs the list {} ({})", row.name, list.name, list.meaning));
    validate_length(row, list, given->second.size(), rope.rotary_dim);
    for (std::size_t i = 0; i < given->second.size(); ++i)
      if (!(given->second[i] >= list.min && given->second[i] <= list.max))
        throw SpecError(fmt::format("rope \"{}\": {}[{}] = {}, allowed are {} to {}", row.name,
                                    list.name, i, given->second[i], list.min, list.max));
  }
  for (const auto& [name, values] : rope.lists)
    if (std::ranges::find(row.lists, name, &RopeList::name) == row.lists.end())
      throw SpecError(fmt::format("rope \"{}\" has no list {} (given {} numbers)", row.name, name,
                                  values.size()));
}

}  // namespace

std::vector<RopeVariant> rope_variants() { return rope_registry().rows(); }

RopeVariant rope_variant(std::string_view name) { return rope_registry().find(name); }

void register_rope_variant(const RopeVariant& variant) { rope_registry().add(variant); }

void validate(const RopeSpec& rope, int head_dim) {
  const RopeVariant row = rope_variant(rope.variant);
  validate_parameters("rope", row, rope.parameters);
  row.check(rope.parameters);
  if (rope.variant == "none") {
    if (rope.rotary_dim != 0)
      throw SpecError(
          fmt::format("rope \"none\" with rotary_dim = {}; it must be 0", rope.rotary_dim));
    validate_lists(row, rope);
    return;
  }
  // A unit has two or four pairs, and the units of a row must not exceed the lanes of a warp:
  // templates/ops/rope.
  const int step = rope.rotary_dim < kMultipleOf8From ? 4 : 8;
  if (rope.rotary_dim < 4 || rope.rotary_dim > head_dim || rope.rotary_dim % step != 0)
    throw SpecError(
        fmt::format("rotary_dim = {} with head_dim = {}; allowed are multiples of 4 up to "
                    "head_dim; from {} on, multiples of 8",
                    rope.rotary_dim, head_dim, kMultipleOf8From));
  validate_lists(row, rope);
}

}  // namespace lazyrope
