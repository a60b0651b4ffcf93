#include "tests/isa/rows/rows.h"

namespace lazyrope {
namespace {

constexpr int kCtas = 4;
constexpr int kThreads = 128;

Words turns(Generator& random) {
  Words words = random_words(3 + kCtas)(random);
  words[0] = words[1] = words[2] = 0;
  return words;
}

}  // namespace

WitnessText hopper_text() {
  return {.name = "hopper",
          .ctas = kCtas,
          .threads = kThreads,
          .shared_bytes = 4 * kThreads,
          .least_arch = "sm_90a"};
}

std::vector<Witness> hopper_rows() {
  return {
      {.name = "elect",
       .text = "hopper",
       .which = Case::kElect,
       .wrappers = {"elect_sync", "setmaxnreg_inc", "setmaxnreg_dec", "griddepcontrol_wait",
                    "griddepcontrol_launch_dependents"},
       .output_words = kThreads,
       .input = random_words(1)},
      {.name = "named_barriers",
       .text = "hopper",
       .which = Case::kPassOn,
       .wrappers = {"bar_sync", "bar_arrive"},
       .output_words = kThreads,
       .input = random_words(kWitnessWarp)},
      {.name = "in_turn",
       .text = "hopper",
       .which = Case::kInTurn,
       .wrappers = {"st_release_gpu", "atom_add_acq_rel_gpu", "red_add_release_gpu"},
       .output_words = std::size_t{2} * kCtas,
       .input = turns},
  };
}

}  // namespace lazyrope
