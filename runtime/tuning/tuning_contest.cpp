#include "runtime/tuning/tuning_contest.h"

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
constexpr int kLeastRounds = 5;
constexpr int kScreenRounds = 12;
constexpr int kFinalRounds = 60;
constexpr std::size_t kFinalists = 4;  // beside the default

std::vector<std::size_t> still_left(const std::vector<Contender>& contenders,
                                    const std::vector<std::size_t>& running) {
  std::vector<std::size_t> left;
  std::ranges::copy_if(running, std::back_inserter(left),
                       [&](std::size_t i) { return contenders[i].is_left(); });
  return left;
}

std::vector<TrialTimes> times_of(const std::vector<Contender>& contenders,
                                 const std::vector<std::size_t>& running) {
  std::vector<TrialTimes> times;
  std::ranges::transform(running, std::back_inserter(times),
                         [&](std::size_t i) { return contenders[i].times; });
  return times;
}

void note_times(const Contender& usual, Contender& contender) {
  TuningTrial& trial = contender.trial;
  trial.us.clear();
  std::ranges::transform(contender.times, std::back_inserter(trial.us), median);
  const Gain gain = gain_over(usual.times, contender.times);
  trial.gain = gain.share;
  trial.noise = gain.noise;
}

}  // namespace

void Contender::reject(const std::string& why) {
  trial.left_out = why;
  log_message(LogLevel::kWarning, "tuning rejects a plan ({}): {}; please report this",
              describe(trial.plan), why);
}

std::size_t TuningContest::run(std::string_view name, const std::vector<const TuningCase*>& cases,
                               std::vector<Contender>& contenders) {
  Indices running;
  for (std::size_t i = 0; i < contenders.size(); ++i)
    if (contenders[i].attention != nullptr) running.push_back(i);
  measure(name, cases, contenders, running, kScreenRounds);
  running = still_left(contenders, running);
  Indices last;
  for (const std::size_t i : finalists(times_of(contenders, running), kFinalists))
    last.push_back(running[i]);
  measure(name, cases, contenders, last, kFinalRounds);
  last = still_left(contenders, last);
  return last[choose(times_of(contenders, last))];
}

void TuningContest::measure(std::string_view name, const std::vector<const TuningCase*>& cases,
                            std::vector<Contender>& contenders, const Indices& running,
                            int rounds) {
  for (const std::size_t i : running) contenders[i].times.clear();
  for (const TuningCase* c : cases) {
    const Indices left = still_left(contenders, running);
    say_(fmt::format("{}: {} plans on {}", name, left.size(), describe(c->workload())));
    run_rounds(*c, contenders, checked_steps(*c, contenders, left), rounds);
  }
  for (const std::size_t i : still_left(contenders, running))
    note_times(contenders.front(), contenders[i]);
}

// The steps of those whose results are the default's.
TuningContest::Steps TuningContest::checked_steps(const TuningCase& c,
                                                  std::vector<Contender>& contenders,
                                                  const Indices& running) const {
  Steps steps(contenders.size());
  std::optional<TuningResult> usual;
  for (const std::size_t i : running) {
    Contender& contender = contenders[i];
    try {
      steps[i] = c.plan(*contender.attention);
      const TuningResult result = c.result(*contender.attention, *steps[i]);
      if (!usual) usual = result;
      if (const std::string why = difference(*usual, result, contender.attention->spec().dtype);
          !why.empty())
        throw std::runtime_error(why);
    } catch (const std::exception& error) {
      if (i == 0) throw;
      contender.reject(error.what());
      steps[i] = nullptr;
    }
  }
  return steps;
}

// In each round every plan has a turn, in another order each time.
void TuningContest::run_rounds(const TuningCase& c, std::vector<Contender>& contenders,
                               const Steps& steps, int rounds) {
  using Clock = std::chrono::steady_clock;
  Indices order;
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i] != nullptr) order.push_back(i);
  for (const std::size_t i : order) contenders[i].times.emplace_back();
  const auto stopwatch = device_->stopwatch();
  const auto end = Clock::now() + std::chrono::duration<double>(seconds_);
  for (int round = -kWarmUpRounds; round < rounds; ++round) {
    if (round >= kLeastRounds && Clock::now() > end) break;
    check_interruption();
    std::ranges::shuffle(order, random_);
    // The first is not timed: while it runs, the host gets ahead.
    Indices turns = {order.front()};
    turns.insert(turns.end(), order.begin(), order.end());
    std::vector<std::function<void()>> calls;
    std::ranges::transform(turns, std::back_inserter(calls), [&](std::size_t i) {
      return [&c, &attention = *contenders[i].attention, &step = *steps[i]] {
        c.attend(attention, step);
      };
    });
    const std::vector<double> us = stopwatch->time(calls, nullptr);
    for (std::size_t k = 1; k < turns.size() && round >= 0; ++k)
      contenders[turns[k]].times.back().push_back(us[k]);
  }
}

}  // namespace lazyrope
