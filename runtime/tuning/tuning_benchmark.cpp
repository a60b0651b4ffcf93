#include "runtime/tuning/tuning_benchmark.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <exception>
#include <optional>
#include <stdexcept>

#include "runtime/base/interruption.h"
#include "runtime/base/log.h"

namespace lazyrope {
namespace {

constexpr int kWarmUpRounds = 2;
constexpr int kMinRounds = 5;
constexpr int kScreeningRounds = 12;
constexpr int kFinalRounds = 60;
constexpr std::size_t kFinalists = 4;  // in addition to the default

std::vector<std::size_t> active_indices(const std::vector<TuningCandidate>& candidates,
                                        const std::vector<std::size_t>& running) {
  std::vector<std::size_t> active;
  std::ranges::copy_if(running, std::back_inserter(active),
                       [&](std::size_t i) { return candidates[i].is_active(); });
  return active;
}

std::vector<TrialTimes> times_of(const std::vector<TuningCandidate>& candidates,
                                 const std::vector<std::size_t>& running) {
  std::vector<TrialTimes> times;
  std::ranges::transform(running, std::back_inserter(times),
                         [&](std::size_t i) { return candidates[i].times; });
  return times;
}

void record_times(const TuningCandidate& baseline, TuningCandidate& candidate) {
  TuningTrial& trial = candidate.trial;
  trial.us.clear();
  std::ranges::transform(candidate.times, std::back_inserter(trial.us), median);
  const Gain gain = gain_over(baseline.times, candidate.times);
  trial.gain = gain.fraction;
  trial.noise = gain.noise;
}

}  // namespace

void TuningCandidate::reject(const std::string& why) {
  trial.rejection = why;
  log_message(LogLevel::kWarning, "tuning rejects a config ({}): {}; please report this",
              describe(trial.config), why);
}

std::size_t TuningBenchmark::run(std::string_view name, const std::vector<const TuningCase*>& cases,
                                 std::vector<TuningCandidate>& candidates) {
  Indices running;
  for (std::size_t i = 0; i < candidates.size(); ++i)
    if (candidates[i].attention != nullptr) running.push_back(i);
  measure(name, cases, candidates, running, kScreeningRounds);
  running = active_indices(candidates, running);
  Indices last;
  for (const std::size_t i : finalists(times_of(candidates, running), kFinalists))
    last.push_back(running[i]);
  measure(name, cases, candidates, last, kFinalRounds);
  last = active_indices(candidates, last);
  return last[choose(times_of(candidates, last))];
}

void TuningBenchmark::measure(std::string_view name, const std::vector<const TuningCase*>& cases,
                              std::vector<TuningCandidate>& candidates, const Indices& running,
                              int rounds) {
  for (const std::size_t i : running) candidates[i].times.clear();
  for (const TuningCase* c : cases) {
    const Indices active = active_indices(candidates, running);
    report_(fmt::format("{}: {} configs on {}", name, active.size(), describe(c->workload())));
    run_rounds(*c, candidates, checked_steps(*c, candidates, active), rounds);
  }
  for (const std::size_t i : active_indices(candidates, running))
    record_times(candidates.front(), candidates[i]);
}

// Returns the steps of the candidates whose results agree with the default's.
TuningBenchmark::Steps TuningBenchmark::checked_steps(const TuningCase& c,
                                                      std::vector<TuningCandidate>& candidates,
                                                      const Indices& running) const {
  Steps steps(candidates.size());
  std::optional<TuningResult> baseline;
  for (const std::size_t i : running) {
    TuningCandidate& candidate = candidates[i];
    try {
      steps[i] = c.plan(*candidate.attention);
      const TuningResult result = c.result(*candidate.attention, *steps[i]);
      if (!baseline) baseline = result;
      if (const std::string why = difference(*baseline, result, candidate.attention->spec());
          !why.empty())
        throw std::runtime_error(why);
    } catch (const std::exception& error) {
      if (i == 0) throw;
      candidate.reject(error.what());
      steps[i] = nullptr;
    }
  }
  return steps;
}

// Every config runs once in each round, in a random order.
void TuningBenchmark::run_rounds(const TuningCase& c, std::vector<TuningCandidate>& candidates,
                                 const Steps& steps, int rounds) {
  Indices order;
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i] != nullptr) order.push_back(i);
  for (const std::size_t i : order) candidates[i].times.emplace_back();
  const auto stopwatch = device_->stopwatch();
  const auto end = std::chrono::steady_clock::now() + std::chrono::duration<double>(seconds_);
  for (int round = -kWarmUpRounds; round < rounds; ++round) {
    if (round >= kMinRounds && std::chrono::steady_clock::now() > end) break;
    check_interruption();
    std::ranges::shuffle(order, random_);
    // The first call is not timed. While it runs, the host queues the others.
    Indices sequence = {order.front()};
    sequence.insert(sequence.end(), order.begin(), order.end());
    std::vector<std::function<void()>> calls;
    std::ranges::transform(sequence, std::back_inserter(calls), [&](std::size_t i) {
      return [&c, &attention = *candidates[i].attention, &step = *steps[i]] {
        c.attend(attention, step);
      };
    });
    const std::vector<double> us = stopwatch->time(calls, nullptr);
    for (std::size_t k = 1; k < sequence.size() && round >= 0; ++k)
      candidates[sequence[k]].times.back().push_back(us[k]);
  }
}

}  // namespace lazyrope
