#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lazyrope {

// The microseconds that one config took: [workload][round]. The calls of one round were
// interleaved, so a drift in time, such as that of clocks, is the same for all configs of a round.
// A workload may have fewer rounds if time ran out; the rule then ignores the last rounds of the
// others.
using TrialTimes = std::vector<std::vector<double>>;

// The time that one config saves compared with another.
struct Gain {
  double fraction = 0;  // saved part of the other's time; all workloads have the same weight
  double noise = 0;     // three standard errors of the median of this fraction over the rounds
};

// Returns the median of at least one value.
double median(std::vector<double> values);

// Returns the gain of `other` over `baseline`. Both have the same workloads and rounds, at least
// one of each.
Gain gain_over(const TrialTimes& baseline, const TrialTimes& other);

// Returns true if `other` should replace `baseline`. It must be faster by more than the noise and
// by more than 1%, and on no workload slower by as much.
bool beats(const TrialTimes& baseline, const TrialTimes& other);

// Returns the index of the baseline, which is the first of `trials`, and the indices of up to
// `count` of the fastest others, in ascending order.
std::vector<std::size_t> finalists(std::span<const TrialTimes> trials, std::size_t count);

// Returns the index of the fastest trial that beats the first one, or 0 if none does.
std::size_t choose(std::span<const TrialTimes> trials);

}  // namespace lazyrope
