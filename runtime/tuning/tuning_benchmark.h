#pragma once

#include <functional>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/attention/attention.h"
#include "runtime/engine/tuning.h"
#include "runtime/tuning/tuning_inputs.h"
#include "runtime/tuning/tuning_rule.h"

namespace lazyrope {

// A config in a benchmark, with its times.
struct TuningCandidate {
  TuningTrial trial;
  std::shared_ptr<const Attention> attention = {};  // null if it does not compile
  TrialTimes times = {};

  bool is_active() const { return trial.rejection.empty(); }
  // Excludes the config, with a warning.
  void reject(const std::string& why);
};

// Measures configs on a device, interleaved. First all configs run a few rounds. Then the default
// and the fastest configs run again, and only these rounds decide, because the fastest of many
// configs is partly lucky. Not thread-safe.
class TuningBenchmark {
 public:
  using Report = std::function<void(const std::string&)>;

  // `seconds` limits the rounds on one workload.
  TuningBenchmark(std::shared_ptr<const Device> device, double seconds, unsigned seed,
                  Report report)
      : device_(std::move(device)), seconds_(seconds), random_(seed), report_(std::move(report)) {}

  // Fills in the trials and returns the index of the chosen candidate. The first candidate is the
  // default, and its failures are thrown. Another candidate that fails is rejected.
  std::size_t run(std::string_view name, const std::vector<const TuningCase*>& cases,
                  std::vector<TuningCandidate>& candidates);

 private:
  using Indices = std::vector<std::size_t>;
  using Steps = std::vector<std::unique_ptr<Step>>;

  void measure(std::string_view name, const std::vector<const TuningCase*>& cases,
               std::vector<TuningCandidate>& candidates, const Indices& running, int rounds);
  Steps checked_steps(const TuningCase& c, std::vector<TuningCandidate>& candidates,
                      const Indices& running) const;
  void run_rounds(const TuningCase& c, std::vector<TuningCandidate>& candidates, const Steps& steps,
                  int rounds);

  std::shared_ptr<const Device> device_;
  double seconds_;
  std::mt19937 random_;
  Report report_;
};

}  // namespace lazyrope
