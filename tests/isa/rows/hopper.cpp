#include <algorithm>

#include "tests/isa/rows/rows.h"

namespace lazyrope {
namespace {

constexpr int kCtas = 4;
constexpr int kThreads = 128;
constexpr int kStores = 12;
constexpr std::uint32_t kStoredWords = 128;  // as in hopper.cuh

Words rows_to_store(Generator& random) {
  Words words;
  for (int store = 0; store < kStores; ++store) {
    Words rows = random.permutation(kWitnessWarp);
    if (store == 0) std::ranges::sort(rows);
    for (const std::uint32_t row : rows) {
      words.push_back(row);
      for (int i = 0; i < 4; ++i) words.push_back(random.bits32());
    }
  }
  return words;
}

Words turns(Generator& random) {
  Words words = random_words(3 + kCtas)(random);
  words[0] = words[1] = words[2] = 0;
  return words;
}

Witness matrix_store(std::string wrapper, Case which) {
  Witness row;
  row.name = wrapper;
  row.text = "hopper";
  row.which = which;
  row.wrappers = {std::move(wrapper)};
  row.count = kStores;
  row.output_words = std::size_t{kStores} * kStoredWords;
  row.input = rows_to_store;
  return row;
}

}  // namespace

WitnessText hopper_text() {
  return {.name = "hopper",
          .ctas = kCtas,
          .threads = kThreads,
          .shared_bytes = kThreads / kWitnessWarp * 4 * static_cast<int>(kStoredWords),
          .least_arch = "sm_90a"};
}

std::vector<Witness> hopper_rows() {
  return {
      matrix_store("stmatrix_x4", Case::kStmatrix),
      matrix_store("stmatrix_x4_trans", Case::kStmatrixTrans),
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
