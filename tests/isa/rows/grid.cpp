#include "tests/isa/rows/rows.h"

namespace lazyrope {
namespace {

constexpr int kCtas = 5;

// Draws pairs of words: the value that an atomic finds, and its operand, the bound of atom.inc.
Words counters(Generator& random) {
  Words words;
  for (int i = 0; i < kCtas * kConformanceThreads; ++i) {
    const std::uint32_t last =
        random.one_of({0u, 1u, 7u, 0x7fffffffu, 0xffffffffu, random.bits32()});
    words.push_back(random.one_of({0u, last - 1, last, last + 1, 0xffffffffu}));
    words.push_back(last);
  }
  return words;
}

// Draws such a pair, two unused words and four random words for each thread.
Words counters_and_words(Generator& random) {
  Words words;
  const Words all = counters(random);
  for (std::size_t i = 0; i < all.size(); i += 2) {
    words.insert(words.end(), {all[i], all[i + 1], 0, 0});
    for (int j = 0; j < 4; ++j) words.push_back(random.bits32());
  }
  return words;
}

Words rows_of_ctas(Generator& random) {
  Words words = random_words(4 + std::size_t{2} * kCtas * kConformanceThreads)(random);
  words[0] = words[1] = 0;  // counter and flag
  return words;
}

}  // namespace

ConformanceKernel grid_kernel() { return {.name = "grid", .ctas = kCtas, .shared_bytes = 16}; }

std::vector<ConformanceCase> grid_cases() {
  constexpr std::size_t kAllThreads = std::size_t{kCtas} * kConformanceThreads;
  return {
      {.name = "place",
       .kernel = "grid",
       .which = Case::kIndices,
       .wrappers = {"thread_index", "block_index", "block_threads", "grid_blocks", "lane_index",
                    "warp_index"},
       .output_words = 6 * kAllThreads,
       .input = random_words(1)},
      {.name = "atomics",
       .kernel = "grid",
       .which = Case::kAtomics,
       .wrappers = {"atom_acq_rel_gpu_inc", "atom_relaxed_gpu_exch", "ld_acquire_gpu"},
       .output_words = 4 * kAllThreads,
       .input = counters},
      {.name = "relaxed",
       .kernel = "grid",
       .which = Case::kRelaxed,
       .wrappers = {"ld_relaxed_gpu", "ld_relaxed_gpu_if", "st_relaxed_gpu",
                    "atom_relaxed_gpu_inc"},
       .output_words = 12 * kAllThreads,
       .input = counters_and_words},
      {.name = "last_cta",
       .kernel = "grid",
       .which = Case::kLastCta,
       .wrappers = {"bar_sync", "atom_acq_rel_gpu_inc"},
       .output_words = std::size_t{kConformanceThreads} + 2 + kCtas,
       .input = rows_of_ctas},
  };
}

}  // namespace lazyrope
