#include "tests/isa/rows/rows.h"

namespace lazyrope {
namespace {

// The same constants are in mbarrier.cuh.
constexpr int kPhases = 6;
constexpr std::uint32_t kCopiedWords = 512;

constexpr int kLoads = 8;  // phases of two copies each
constexpr std::uint32_t kSourceWords = 1024;
constexpr std::uint32_t kHalf = kCopiedWords / 2;  // words for one of the two copies
constexpr std::uint32_t kSixteenBytes = 4;         // words
constexpr int kStores = 8;
constexpr std::uint32_t kSlot = 32;  // output words for one copy of the stores

std::uint32_t multiple_below(Generator& random, std::uint32_t limit) {
  return kSixteenBytes * random.below(limit / kSixteenBytes);
}

void push_random(Words& words, Generator& random, std::uint32_t count) {
  for (std::uint32_t i = 0; i < count; ++i) words.push_back(random.bits32());
}

// Draws the copies of the loads. The first two fill all of the words; later ones copy 16 bytes or
// more.
Words copies_in(Generator& random) {
  Words words;
  for (std::uint32_t copy = 0; copy < 2 * kLoads; ++copy) {
    const std::uint32_t count =
        copy < 2 ? kHalf : kSixteenBytes + multiple_below(random, kHalf - kSixteenBytes);
    words.push_back(multiple_below(random, kSourceWords - kHalf));
    words.push_back(count);
    words.push_back(copy % 2 * kHalf + multiple_below(random, kHalf - count + kSixteenBytes));
  }
  while (words.size() % kSixteenBytes != 0) words.push_back(0);
  push_random(words, random, kSourceWords);
  return words;
}

Words copies_out(Generator& random) {
  const Words to = random.permutation(kCopiedWords / kSlot);
  Words words;
  for (std::uint32_t copy = 0; copy < kStores; ++copy) {
    const std::uint32_t count = kSixteenBytes + multiple_below(random, kSlot - kSixteenBytes);
    words.push_back(kSlot * to[copy] + multiple_below(random, kSlot - count + kSixteenBytes));
    words.push_back(count);
    words.push_back(multiple_below(random, kCopiedWords - count));
  }
  push_random(words, random, kCopiedWords);
  return words;
}

}  // namespace

ConformanceKernel mbarrier_kernel() {
  return {.name = "mbarrier",
          .shared_bytes = 1024 + 4 * static_cast<int>(kCopiedWords),
          .least_arch = "sm_90a"};
}

std::vector<ConformanceCase> mbarrier_cases() {
  return {
      {.name = "mbarrier_phases",
       .kernel = "mbarrier",
       .which = Case::kPhases,
       .wrappers = {"mbarrier_init", "fence_mbarrier_init_release_cluster", "mbarrier_arrive",
                    "mbarrier_try_wait_parity", "mbarrier_test_wait_parity", "mbarrier_inval"},
       .output_words = std::size_t{kPhases} * kConformanceThreads,
       .input = random_words(kConformanceThreads)},
      {.name = "bulk_load",
       .kernel = "mbarrier",
       .which = Case::kBulkLoad,
       .wrappers = {"cp_async_bulk_shared_global", "mbarrier_arrive_expect_tx",
                    "mbarrier_expect_tx"},
       .count = kLoads,
       .output_words = std::size_t{kLoads} * kCopiedWords,
       .input = copies_in},
      {.name = "bulk_store",
       .kernel = "mbarrier",
       .which = Case::kBulkStore,
       .wrappers = {"cp_async_bulk_global_shared", "cp_async_bulk_commit_group",
                    "cp_async_bulk_wait_group", "cp_async_bulk_wait_group_read",
                    "fence_proxy_async", "fence_proxy_async_global"},
       .count = kStores,
       .output_words = kCopiedWords + kStores / 2,
       .input = copies_out},
  };
}

}  // namespace lazyrope
