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

// A plan in a contest.
struct Contender {
  TuningTrial trial;
  std::shared_ptr<const Attention> attention = {};  // null where it does not compile
  TrialTimes times = {};

  bool is_left() const { return trial.left_out.empty(); }
  // Leaves it out, loudly.
  void reject(const std::string& why);
};

// Lets plans take turns on a device. All are measured for a few rounds, and then the default and
// the fastest in rounds of their own, which alone decide: the fastest of many is so partly by luck.
class TuningContest {
 public:
  using Say = std::function<void(const std::string&)>;

  // `seconds`: the most that rounds on one workload should take.
  TuningContest(std::shared_ptr<const Device> device, double seconds, unsigned seed, Say say)
      : device_(std::move(device)), seconds_(seconds), random_(seed), say_(std::move(say)) {}

  // The first contender is the default; what goes wrong with another leaves that out. Fills in the
  // trials and returns the index of the one that is chosen.
  std::size_t run(std::string_view name, const std::vector<const TuningCase*>& cases,
                  std::vector<Contender>& contenders);

 private:
  using Indices = std::vector<std::size_t>;
  using Steps = std::vector<std::unique_ptr<Step>>;

  void measure(std::string_view name, const std::vector<const TuningCase*>& cases,
               std::vector<Contender>& contenders, const Indices& running, int rounds);
  Steps checked_steps(const TuningCase& c, std::vector<Contender>& contenders,
                      const Indices& running) const;
  void run_rounds(const TuningCase& c, std::vector<Contender>& contenders, const Steps& steps,
                  int rounds);

  std::shared_ptr<const Device> device_;
  double seconds_;
  std::mt19937 random_;
  Say say_;
};

}  // namespace lazyrope
