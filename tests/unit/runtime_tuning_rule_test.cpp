#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "runtime/tuning/tuning_rule.h"

namespace lazyrope {
namespace {

// Returns a workload's rounds: `us` with normal relative noise, and with a drift that all configs
// share.
std::vector<double> rounds(double us, double deviation, unsigned seed, int count = 60) {
  std::mt19937 random(seed);
  std::normal_distribution<double> normal(0.0, deviation);
  std::vector<double> result;
  for (int i = 0; i < count; ++i)
    result.push_back(us * (1.0 + 0.3 * std::sin(i / 5.0)) * std::exp(normal(random)));
  return result;
}

TEST(TuningRule, MedianIsTheMiddleOrTheMeanOfTheTwo) {
  EXPECT_EQ(median({3, 1, 2}), 2);
  EXPECT_EQ(median({4, 1, 2, 3}), 2.5);
  EXPECT_EQ(median({7}), 7);
}

TEST(TuningRule, GainIsTheFractionOfTimeSaved) {
  const Gain gain = gain_over({{100, 200, 300}}, {{80, 160, 240}});
  EXPECT_NEAR(gain.fraction, 0.2, 1e-12);
  EXPECT_NEAR(gain.noise, 0.0, 1e-12) << "rounds are paired, so a drift that all share is no noise";
  EXPECT_NEAR(gain_over({{80}}, {{100}}).fraction, -0.25, 1e-12);
}

TEST(TuningRule, WorkloadsHaveTheSameWeight) {
  EXPECT_NEAR(gain_over({{10}, {10000}}, {{5}, {20000}}).fraction, 0.0, 1e-12);
  EXPECT_NEAR(gain_over({{10}, {1000}}, {{8.1}, {1000}}).fraction, 0.1, 1e-12);
}

TEST(TuningRule, RoundsThatAWorkloadLacksAreIgnored) {
  EXPECT_NEAR(gain_over({{10, 10, 10}, {10}}, {{5, 20, 20}, {5}}).fraction, 0.5, 1e-12);
}

TEST(TuningRule, NoiseIsThreeStandardErrorsOfTheMedian) {
  const Gain gain = gain_over({rounds(100, 0.05, 1, 400)}, {rounds(100, 0.0, 2, 400)});
  EXPECT_NEAR(gain.noise, 3 * 1.2533 * 0.05 / std::sqrt(400.0), 0.002);
}

TEST(TuningRule, FasterConfigIsChosen) {
  const TrialTimes baseline = {rounds(100, 0.01, 1)};
  const TrialTimes faster = {rounds(95, 0.01, 2)};
  const TrialTimes fastest = {rounds(90, 0.01, 3)};
  EXPECT_TRUE(beats(baseline, faster));
  EXPECT_EQ(choose(std::vector{baseline, faster, fastest}), 2u);
  EXPECT_EQ(choose(std::vector{baseline, fastest, faster}), 1u);
}

TEST(TuningRule, DefaultStaysWithinTheNoise) {
  EXPECT_FALSE(beats({rounds(100, 0.3, 1)}, {rounds(97, 0.3, 2)}));
  EXPECT_TRUE(beats({rounds(100, 0.01, 1)}, {rounds(97, 0.01, 2)}))
      << "the same gain exceeds a smaller noise";
}

TEST(TuningRule, DefaultStaysIfTheGainIsBelowOnePercent) {
  EXPECT_FALSE(beats({{1000, 1000}}, {{991, 991}}));
  EXPECT_TRUE(beats({{1000, 1000}}, {{989, 989}}));
}

TEST(TuningRule, EqualConfigsRarelyReplaceTheDefault) {
  int chosen = 0;
  for (unsigned seed = 0; seed < 200; ++seed) {
    std::vector<TrialTimes> trials;
    for (unsigned i = 0; i < 5; ++i) trials.push_back({rounds(100, 0.05, 1000 * seed + i)});
    chosen += choose(trials) != 0;
  }
  EXPECT_LE(chosen, 4) << "at most 4 of 200";
}

TEST(TuningRule, ConfigThatIsSlowerOnAWorkloadIsNotChosen) {
  const TrialTimes baseline = {rounds(100, 0.01, 1), rounds(100, 0.01, 2)};
  EXPECT_FALSE(beats(baseline, {rounds(50, 0.01, 3), rounds(105, 0.01, 4)}));
  EXPECT_TRUE(beats(baseline, {rounds(50, 0.01, 3), rounds(100.5, 0.01, 4)}));
}

TEST(TuningRule, DefaultIsAFinalistWhateverItsTime) {
  const std::vector<TrialTimes> trials = {{{100}}, {{70}}, {{90}}, {{60}}, {{80}}};
  EXPECT_EQ(finalists(trials, 2), (std::vector<std::size_t>{0, 1, 3}));
  EXPECT_EQ(finalists(trials, 9), (std::vector<std::size_t>{0, 1, 2, 3, 4}));
  EXPECT_EQ(finalists(std::vector<TrialTimes>{{{100}}}, 2), (std::vector<std::size_t>{0}));
}

TEST(TuningRule, DefaultIsChosenIfItIsAlone) {
  EXPECT_EQ(choose(std::vector<TrialTimes>{{{100}}}), 0u);
}

}  // namespace
}  // namespace lazyrope
