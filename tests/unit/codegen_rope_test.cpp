#include <gtest/gtest.h>

#include <cmath>
#include <numbers>

#include "codegen/error.h"
#include "codegen/rope.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

constexpr long double kPi = std::numbers::pi_v<long double>;

std::vector<double> frequencies_of(const RopeSpec& rope) {
  return rope_variant(rope.variant).frequencies(rope);
}

long double plain(int i, int rotary_dim, long double theta) {
  return 1.0L / std::exp(2.0L * i / rotary_dim * std::log(theta));
}

// Follows the model's published code, which has three cases by wavelength.
long double scaled_as_llama3(long double w, const RopeParameters& p) {
  const long double context = p.at("original_max_position_embeddings");
  const long double wavelength = 2.0L * kPi / w;
  if (wavelength < context / p.at("high_freq_factor")) return w;
  if (wavelength > context / p.at("low_freq_factor")) return w / p.at("factor");
  const long double smooth = (context / wavelength - p.at("low_freq_factor")) /
                             (p.at("high_freq_factor") - p.at("low_freq_factor"));
  return (1.0L - smooth) * w / p.at("factor") + smooth * w;
}

void expect_relative(double given, long double exact, int pair) {
  EXPECT_LE(std::abs(given / exact - 1.0L), 4e-15L) << "pair " << pair;
}

TEST(Rope, NeoxFrequenciesFollowTheFormula) {
  for (const double theta : {1.0, 10000.0, 500000.0, 1e6})
    for (const int rotary_dim : {16, 64, 128}) {
      const std::vector<double> w = frequencies_of({"neox", rotary_dim, {{"theta", theta}}});
      ASSERT_EQ(std::ssize(w), rotary_dim / 2);
      for (int i = 0; i < rotary_dim / 2; ++i)
        expect_relative(w[static_cast<std::size_t>(i)], plain(i, rotary_dim, theta), i);
    }
}

TEST(Rope, Llama3FrequenciesFollowTheFormula) {
  const RopeSpec rope = llama3(128);
  const std::vector<double> w = frequencies_of(rope);
  ASSERT_EQ(w.size(), 64u);
  int unchanged = 0, slowed = 0;
  for (int i = 0; i < 64; ++i) {
    const long double unscaled = plain(i, 128, 500000.0L);
    const long double exact = scaled_as_llama3(unscaled, rope.parameters);
    expect_relative(w[static_cast<std::size_t>(i)], exact, i);
    unchanged += exact == unscaled;
    slowed += exact == unscaled / 8;
  }
  EXPECT_GT(unchanged, 0);
  EXPECT_GT(slowed, 0);
  EXPECT_LT(unchanged + slowed, 64) << "some frequencies are between";
}

// The expected values follow the published code: a ramp over the indices of the pairs.
TEST(Rope, YarnFrequenciesFollowTheFormula) {
  for (const bool truncates : {false, true}) {
    RopeSpec rope = yarn(64);
    rope.parameters["truncate"] = truncates ? 1.0 : 0.0;
    const std::vector<double> w = frequencies_of(rope);
    ASSERT_EQ(w.size(), 32u);
    const auto pair_of = [](long double revolutions) {
      return 64.0L * std::log(4096.0L / (revolutions * 2.0L * kPi)) / (2.0L * std::log(150000.0L));
    };
    const long double first = truncates ? std::floor(pair_of(32.0L)) : pair_of(32.0L);
    const long double last = truncates ? std::ceil(pair_of(1.0L)) : pair_of(1.0L);
    int unchanged = 0, slowed = 0;
    for (int i = 0; i < 32; ++i) {
      const long double unscaled = plain(i, 64, 150000.0L);
      const long double ramp =
          std::min(std::max((static_cast<long double>(i) - first) / (last - first), 0.0L), 1.0L);
      const long double exact = unscaled / 32.0L * ramp + unscaled * (1.0L - ramp);
      EXPECT_LE(std::abs(w[static_cast<std::size_t>(i)] / exact - 1.0L), 4e-14L) << "pair " << i;
      unchanged += ramp == 0.0L;
      slowed += ramp == 1.0L;
    }
    EXPECT_GT(unchanged, 0);
    EXPECT_GT(slowed, 0);
    EXPECT_LT(unchanged + slowed, 32) << "some frequencies are between";
  }
}

TEST(Rope, YarnHasADefaultAttentionFactor) {
  RopeSpec rope = yarn(64);
  rope.parameters.erase("attention_factor");
  EXPECT_DOUBLE_EQ(rope_variant("yarn").attention_factor(rope.parameters),
                   0.1 * std::log(32.0) + 1.0);
}

TEST(Rope, YarnRefusesParametersWithoutARamp) {
  for (const auto& [name, value, says] :
       {std::tuple{"theta", 1.0, "theta = 1; it must be greater than 1"},
        std::tuple{"beta_slow", 32.0, "beta_fast = 32 with beta_slow = 32"},
        std::tuple{"truncate", 0.5, "truncate = 0.5; allowed are 0 and 1"},
        std::tuple{"truncate", 2.0, "truncate = 2, allowed are 0 to 1"}}) {
    RopeSpec rope = yarn(64);
    rope.parameters[name] = value;
    EXPECT_TRUE(throws<SpecError>([&] { validate(rope, 64); }, {says}));
  }
}

TEST(Rope, NoneHasNoFrequencies) { EXPECT_TRUE(frequencies_of({}).empty()); }

TEST(Rope, TheAttentionFactorIsThatOfTheParameters) {
  for (const RopeVariant& variant : rope_variants()) {
    RopeSpec rope = example_rope(variant.name, 64);
    EXPECT_EQ(variant.attention_factor(rope.parameters), 1.0) << variant.name;
    if (variant.parameters.empty()) continue;
    rope.parameters["attention_factor"] = 1.25;
    EXPECT_NO_THROW(validate(rope, 64)) << variant.name;
    EXPECT_EQ(variant.attention_factor(rope.parameters), 1.25) << variant.name;
  }
}

TEST(Rope, LinearDividesPositions) {
  const std::vector<double> plain = frequencies_of(neox(64));
  const std::vector<double> slow = frequencies_of(example_rope("linear", 64));
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_DOUBLE_EQ(slow[i], plain[i] / 4);
}

TEST(Rope, LongRopeDividesEachFrequency) {
  for (const int rotary_dim : {32, 96, 128}) {
    const RopeSpec rope = longrope(rotary_dim);
    const std::vector<double> w = frequencies_of(rope);
    ASSERT_EQ(std::ssize(w), rotary_dim / 2);
    for (int i = 0; i < rotary_dim / 2; ++i) {
      const auto pair = static_cast<std::size_t>(i);
      expect_relative(w[pair], plain(i, rotary_dim, 10000.0L) / rope.lists.at("factors")[pair], i);
    }
  }
}

TEST(Rope, AListHasANumberForEachPair) {
  const auto refuses = [](const RopeSpec& rope, const std::string& says) {
    return throws<SpecError>([&] { validate(rope, 64); }, {says});
  };
  RopeSpec rope = longrope(64);
  EXPECT_NO_THROW(validate(rope, 64));
  rope.lists["factors"].pop_back();
  EXPECT_TRUE(refuses(rope, "factors has 31 numbers with rotary_dim = 64; it must have 32"));
  rope.lists["factors"].push_back(0.0);
  EXPECT_TRUE(refuses(rope, "factors[31] = 0, allowed are 0.001 to 1000000"));
  rope.lists["factors"].back() = std::nan("");
  EXPECT_TRUE(refuses(rope, "factors[31] = nan, allowed are"));
  rope.lists.clear();
  EXPECT_TRUE(refuses(rope, "rope \"longrope\" needs the list factors"));
  rope = neox(64);
  rope.lists["factors"] = {1.0};
  EXPECT_TRUE(refuses(rope, "rope \"neox\" has no list factors (given 1 numbers)"));
  rope = {};
  rope.lists["factors"] = {};
  EXPECT_TRUE(refuses(rope, "rope \"none\" has no list factors"));
}

TEST(Rope, EveryParameterOfLlama3IsNeededAndHasBounds) {
  for (const RopeParameter& parameter : rope_variant("llama3").parameters) {
    RopeSpec rope = llama3(64);
    rope.parameters.erase(parameter.name);
    if (!parameter.default_value) {
      EXPECT_TRUE(
          throws<SpecError>([&] { validate(rope, 64); },
                            {"rope \"llama3\" needs " + parameter.name, parameter.meaning}));
    }
    rope.parameters[parameter.name] = parameter.min - 1;
    EXPECT_TRUE(throws<SpecError>([&] { validate(rope, 64); },
                                  {"rope \"llama3\": " + parameter.name + " = ", "allowed are "}));
  }
}

TEST(Rope, Llama3RefusesFactorsInTheWrongOrder) {
  RopeSpec rope = llama3(64);
  rope.parameters["high_freq_factor"] = 0.5;
  EXPECT_TRUE(throws<SpecError>([&] { validate(rope, 64); },
                                {"high_freq_factor = 0.5", "low_freq_factor = 1"}));
}

// With equal factors, as in Llama 4 Scout, each frequency is kept or divided by the factor.
TEST(Rope, Llama3InterpolatesNothingIfTheFactorsAreEqual) {
  RopeSpec rope = llama3(64);
  rope.parameters["high_freq_factor"] = 1.0;
  EXPECT_NO_THROW(validate(rope, 64));
  RopeSpec same_theta = neox(64);
  same_theta.parameters["theta"] = rope.parameters["theta"];
  const auto scaled = rope_variant("llama3").frequencies(rope);
  const auto before = rope_variant("neox").frequencies(same_theta);
  const double context = rope.parameters["original_max_position_embeddings"];
  for (std::size_t i = 0; i < scaled.size(); ++i) {
    const bool is_low = 2.0 * std::numbers::pi / before[i] > context;
    EXPECT_DOUBLE_EQ(scaled[i], is_low ? before[i] / rope.parameters["factor"] : before[i]) << i;
  }
}

TEST(Rope, ANameIsRegisteredOnce) {
  EXPECT_TRUE(throws<SpecError>([] { register_rope_variant(rope_variant("neox")); },
                                {"\"neox\" exists already", "choose another name"}));
}

}  // namespace
}  // namespace lazyrope
