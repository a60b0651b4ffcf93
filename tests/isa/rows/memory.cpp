#include "tests/isa/rows/rows.h"

namespace lazyrope {
namespace {

// Draws copies as tests/isa/kernels/memory.cuh reads them. Among 16-byte copies, those of 0 bytes
// have an invalid source. One copy reads the last bytes of the input.
Words copies(Generator& random, std::uint32_t size) {
  constexpr std::uint32_t kCopies = 2 * kConformanceThreads;
  constexpr std::uint32_t kData = 1001;  // words: no multiple of 16 bytes
  const Words to = random.permutation(kCopies);
  Words words;
  for (std::uint32_t i = 0; i < kCopies; ++i) {
    const std::uint32_t bytes = i % (size + 1);
    const std::uint32_t from = size * random.below(4 * kData / size);
    const bool is_last = i == 13;
    words.push_back(size * to[i]);
    words.push_back(size == 16 && bytes == 0 ? from + (1u << 20)
                    : is_last                ? 4 * (kData - 1)
                                             : from);
    words.push_back(size == 16 && is_last ? 4 : bytes);
  }
  for (std::uint32_t i = 0; i < kData; ++i) words.push_back(random.bits32());
  return words;
}

ConformanceCase copy_row(std::string name, std::string wrapper, Case which, std::uint32_t size) {
  ConformanceCase row;
  row.name = std::move(name);
  row.kernel = "memory";
  row.which = which;
  row.wrappers = {std::move(wrapper), "cp_async_commit_group", "cp_async_wait_group"};
  row.output_words = std::size_t{3} * kConformanceThreads * size / 4;
  row.input = [=](Generator& random) { return copies(random, size); };
  return row;
}

}  // namespace

ConformanceKernel memory_kernel() {
  return {.name = "memory", .shared_bytes = 2 * 16 * kConformanceThreads};
}

std::vector<ConformanceCase> memory_cases() {
  constexpr std::size_t kGlobalWords =
      14 * kConformanceThreads + kConformanceThreads / 2 + kConformanceThreads / 4;
  return {
      {.name = "shared_memory",
       .kernel = "memory",
       .which = Case::kShared,
       .wrappers = {"ld_shared", "st_shared", "dynamic_shared_memory", "operator+", "operator^",
                    "operator==", "bar_sync"},
       .output_words = std::size_t{11} * kConformanceThreads,
       .input = random_words(std::size_t{10} * kConformanceThreads)},
      {.name = "generic_memory",
       .kernel = "memory",
       .which = Case::kGeneric,
       .wrappers = {"generic", "ld_generic", "st_generic", "operator+", "bar_sync"},
       .output_words = std::size_t{5} * kConformanceThreads,
       .input = random_words(std::size_t{5} * kConformanceThreads)},
      {.name = "global_memory",
       .kernel = "memory",
       .which = Case::kGlobal,
       .wrappers = {"ld_global", "ld_global_nc", "st_global", "prefetch_global_l2"},
       .output_words = kGlobalWords,
       .input = random_words(kGlobalWords)},
      copy_row("cp_async_cg_16", "cp_async_cg_16", Case::kCopy16, 16),
      copy_row("cp_async_cg_16_whole_lines", "cp_async_cg_16", Case::kCopy16WholeLines, 16),
      copy_row("cp_async_ca_4", "cp_async_ca_4", Case::kCopy4, 4),
  };
}

}  // namespace lazyrope
