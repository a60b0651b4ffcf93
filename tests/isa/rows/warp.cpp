#include <array>

#include "tests/isa/rows/rows.h"

namespace lazyrope {
namespace {

constexpr std::size_t kLanes =
    std::size_t{kConformanceWarp} * kConformanceWarp;  // lanes of all exchanges together

// Draws four words per lane: a value of two words, the operand of the shuffles, and an unused word.
Words exchanges(Generator& random) {
  Words words;
  for (std::size_t i = 0; i < kLanes; ++i) {
    words.push_back(i < special_floats().size() ? special_floats()[i] : random.bits32());
    words.push_back(random.bits32());
    words.push_back(i / kConformanceWarp < kConformanceWarp / 2
                        ? static_cast<std::uint32_t>(i / kConformanceWarp) * 2 + 1
                        : random.below(kConformanceWarp));
    words.push_back(0);
  }
  return words;
}

// In turn no lane, all lanes, one lane and random lanes have a predicate that is true.
Words predicates(Generator& random) {
  Words words;
  for (std::uint32_t i = 0; i < kConformanceWarp; ++i)
    for (std::uint32_t lane = 0; lane < kConformanceWarp; ++lane)
      words.push_back(std::array{0u, 0x80000000u, lane == i ? 1u : 0u, random.below(2)}[i % 4]);
  return words;
}

}  // namespace

ConformanceKernel warp_kernel() {
  return {.name = "warp", .shared_bytes = 4 * kConformanceThreads};
}

std::vector<ConformanceCase> warp_cases() {
  return {
      {.name = "shfl_sync",
       .kernel = "warp",
       .which = Case::kShfl,
       .wrappers = {"shfl_sync_idx", "shfl_sync_bfly", "shfl_sync_up"},
       .count = kConformanceWarp,
       .output_words = 6 * kLanes,
       .input = exchanges},
      {.name = "vote_sync",
       .kernel = "warp",
       .which = Case::kVote,
       .wrappers = {"vote_sync_ballot", "vote_sync_any"},
       .count = kConformanceWarp,
       .output_words = 2 * kLanes,
       .input = predicates},
      {.name = "bar_warp_sync",
       .kernel = "warp",
       .which = Case::kWarpBarrier,
       .wrappers = {"bar_warp_sync"},
       .count = kConformanceWarp,
       .output_words = kLanes,
       .input = random_words(kLanes)},
  };
}

}  // namespace lazyrope
