#include "runtime/tuning/tuning_rule.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace lazyrope {
namespace {

constexpr double kMinGain = 0.01;  // a smaller gain is not worth results that round differently
constexpr double kStandardErrors = 3.0;
// The standard error of the median, times the root of the number of values, and the interquartile
// range. Both are in standard deviations, for normally distributed values.
constexpr double kErrorOfMedian = 1.2533;
constexpr double kInterquartileRange = 1.3490;

double quantile(std::vector<double> values, double share) {
  std::ranges::sort(values);
  const double at = share * static_cast<double>(values.size() - 1);
  const auto below = static_cast<std::size_t>(at);
  const std::size_t above = std::min(below + 1, values.size() - 1);
  return std::lerp(values[below], values[above], at - static_cast<double>(below));
}

std::size_t rounds_of(const TrialTimes& times) {
  return std::ranges::min(times, {}, &std::vector<double>::size).size();
}

// Returns for each round the mean over the workloads of log(baseline's time / other's time). With
// logarithms, half the time and twice the time cancel out.
std::vector<double> log_ratios(const TrialTimes& baseline, const TrialTimes& other) {
  std::vector<double> result(rounds_of(baseline), 0.0);
  for (std::size_t w = 0; w < baseline.size(); ++w)
    for (std::size_t r = 0; r < result.size(); ++r)
      result[r] += std::log(baseline[w][r] / other[w][r]) / static_cast<double>(baseline.size());
  return result;
}

double significance_threshold(const Gain& gain) { return std::max(gain.noise, kMinGain); }

bool is_slower_on_any_workload(const TrialTimes& baseline, const TrialTimes& other) {
  for (std::size_t w = 0; w < baseline.size(); ++w)
    if (const Gain gain = gain_over({baseline[w]}, {other[w]});
        gain.fraction < -significance_threshold(gain))
      return true;
  return false;
}

}  // namespace

double median(std::vector<double> values) { return quantile(std::move(values), 0.5); }

Gain gain_over(const TrialTimes& baseline, const TrialTimes& other) {
  const std::vector<double> ratios = log_ratios(baseline, other);
  const double deviation = (quantile(ratios, 0.75) - quantile(ratios, 0.25)) / kInterquartileRange;
  const double error = kErrorOfMedian * deviation / std::sqrt(static_cast<double>(ratios.size()));
  return {1.0 - std::exp(-median(ratios)), kStandardErrors * error};
}

bool beats(const TrialTimes& baseline, const TrialTimes& other) {
  const Gain gain = gain_over(baseline, other);
  return gain.fraction > significance_threshold(gain) &&
         !is_slower_on_any_workload(baseline, other);
}

std::vector<std::size_t> finalists(std::span<const TrialTimes> trials, std::size_t count) {
  std::vector<std::size_t> others(trials.size() - 1);
  std::iota(others.begin(), others.end(), std::size_t{1});
  std::ranges::stable_sort(others, std::greater{}, [&](std::size_t i) {
    return gain_over(trials.front(), trials[i]).fraction;
  });
  others.resize(std::min(others.size(), count));
  others.push_back(0);
  std::ranges::sort(others);
  return others;
}

std::size_t choose(std::span<const TrialTimes> trials) {
  std::size_t best = 0;
  double most = 0;
  for (std::size_t i = 1; i < trials.size(); ++i) {
    const double fraction = gain_over(trials.front(), trials[i]).fraction;
    if (fraction <= most || !beats(trials.front(), trials[i])) continue;
    best = i;
    most = fraction;
  }
  return best;
}

}  // namespace lazyrope
