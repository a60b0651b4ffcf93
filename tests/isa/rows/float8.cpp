#include "tests/isa/rows/rows.h"

namespace lazyrope {
namespace {

// The same constants are in float8.cuh.
constexpr std::size_t kImageWords = 6144;
constexpr std::size_t kThreads = 128;
constexpr std::size_t kEach = 8;
constexpr int kConversions = 4096;

ConformanceCase product(const char* name, Case which) {
  ConformanceCase result;
  result.name = name;
  result.kernel = "float8";
  result.which = which;
  result.wrappers = {"wgmma_m64k32"};
  result.output_words = 2 * kThreads * kEach;
  result.input = [](Generator& random) {
    Words words;
    for (std::size_t i = 0; i < kImageWords; ++i) {
      std::uint32_t word = 0;
      for (int k = 0; k < 4; ++k) {
        const auto byte = static_cast<std::uint32_t>(random.below(256));
        word = word << 8 | ((byte & 0x7f) == 0x7f ? byte - 1 : byte);  // no NaN
      }
      words.push_back(word);
    }
    return words;
  };
  return result;
}

ConformanceCase conversion() {
  ConformanceCase result;
  result.name = "cvt_rn_satfinite_e4m3x2_f32";
  result.kernel = "float8";
  result.which = Case::kToE4m3;
  result.wrappers = {"cvt_rn_satfinite_e4m3x2_f32"};
  result.count = kConversions;
  result.output_words = kConversions;
  result.input = [](Generator& random) {
    Words words;
    for (int i = 0; i < 4 * kConversions; ++i) {
      // Exponents from below the least subnormal number, 2^-9, to above the largest number, 448.
      // Some mantissas are ties or next to one.
      const auto exponent = static_cast<std::uint32_t>(112 + random.below(28));
      const auto any = static_cast<std::uint32_t>(random.below(1 << 23));
      const std::uint32_t near = (any & 0x780000u) + (random.below(2) == 0 ? 0x80000u : 0x7ffffu);
      const std::uint32_t mantissa = random.below(2) == 0 ? any : near & 0x7fffffu;
      const std::uint32_t sign = static_cast<std::uint32_t>(random.below(2)) << 31;
      words.push_back(random.below(64) == 0
                          ? random.one_of({0u, 0x80000000u, 0x7f800000u, 0xff800000u, 0x7fc00000u,
                                           0x43e00000u, 0x43e80000u, 0x43e7ffffu, 1u})
                          : sign | exponent << 23 | mantissa);
    }
    return words;
  };
  return result;
}

}  // namespace

ConformanceKernel float8_kernel() {
  return {.name = "float8",
          .threads = static_cast<int>(kThreads),
          .shared_bytes = 4 * static_cast<int>(kImageWords),
          .least_arch = "sm_90a"};
}

std::vector<ConformanceCase> float8_cases() {
  return {conversion(), product("wgmma_e4m3_shared_n128", Case::kFloat8Shared128),
          product("wgmma_e4m3_registers_n64", Case::kFloat8Registers64),
          product("wgmma_e4m3_registers_n96", Case::kFloat8Registers96),
          product("wgmma_e4m3_registers_n128", Case::kFloat8Registers128)};
}

}  // namespace lazyrope
