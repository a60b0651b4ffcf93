#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace lazyrope {

// Microseconds that one config took: [workload][round]. Rounds of one number were interleaved,
// so that what changes with time, such as clocks, is the same for all configs of a round.
// Where time ran out a workload may have fewer; the others' last ones are then left out.
using TrialTimes = std::vector<std::vector<double>>;

// How much less time one config takes than another.
struct Gain {
  double fraction = 0;  // of the other's time; all workloads count alike
  double noise = 0;     // three standard errors of that, of the median over the rounds
};

// Of at least one value.
double median(std::vector<double> values);

// Both have the same workloads and rounds, at least one of each.
Gain gain_over(const TrialTimes& baseline, const TrialTimes& other);

// Whether a config should be used instead of the baseline: it is faster by more than the noise, and
// by more than a hundredth; and on no workload slower by as much.
bool beats(const TrialTimes& baseline, const TrialTimes& other);

// The first of `trials` is the baseline: it, and up to `count` of the others, the fastest ones.
std::vector<std::size_t> finalists(std::span<const TrialTimes> trials, std::size_t count);

// The fastest of those that beat the first, or the first: 0.
std::size_t choose(std::span<const TrialTimes> trials);

}  // namespace lazyrope
