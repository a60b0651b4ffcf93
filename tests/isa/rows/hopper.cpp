#include "tests/isa/rows/rows.h"

namespace lazyrope {
namespace {

constexpr int kCtas = 4;
constexpr int kThreads = 128;

}  // namespace

ConformanceKernel hopper_kernel() {
  return {.name = "hopper",
          .ctas = kCtas,
          .threads = kThreads,
          .shared_bytes = 4 * kThreads,
          .least_arch = "sm_90a"};
}

std::vector<ConformanceCase> hopper_cases() {
  return {
      {.name = "elect",
       .kernel = "hopper",
       .which = Case::kElect,
       .wrappers = {"elect_sync", "setmaxnreg_inc", "setmaxnreg_dec", "griddepcontrol_wait",
                    "griddepcontrol_launch_dependents"},
       .output_words = kThreads,
       .input = random_words(1)},
      {.name = "named_barriers",
       .kernel = "hopper",
       .which = Case::kPassOn,
       .wrappers = {"bar_sync", "bar_arrive"},
       .output_words = kThreads,
       .input = random_words(kConformanceWarp)},
  };
}

}  // namespace lazyrope
