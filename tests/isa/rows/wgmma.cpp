#include <fmt/format.h>

#include <array>

#include "codegen/kernel_spec.h"
#include "tests/isa/rows/rows.h"

namespace lazyrope {
namespace {

// The same constants are in wgmma.cuh.
constexpr std::size_t kImageWords = 12288;
constexpr int output_count(int results) {
  return results <= 8 ? results : results % 8 == 0 ? 8 : 6;
}
constexpr int kThreads = 128;
constexpr int kRows = 64;
constexpr int kProducts = 2;  // steps along K

constexpr std::uint32_t kStartB = 16384;  // byte of the image where operand B begins

constexpr std::array<const char*, 4> kSwizzleNames = {"plain", "32b", "64b", "128b"};

// Returns the words that describe an operand's layout: start, leading, stride, step, swizzle.
Words layout(std::uint32_t start, bool is_mn_major, std::uint32_t extent, Swizzle swizzle) {
  const auto span = static_cast<std::uint32_t>(swizzle_span(swizzle));
  const auto coded = static_cast<std::uint32_t>(swizzle);
  const std::uint32_t atom = 8 * span;
  if (swizzle == Swizzle::kNone && is_mn_major) {  // 16 bytes between core matrices
    const std::uint32_t stride = atom + 16;
    const std::uint32_t leading = extent / 8 * stride + 32;
    return {start, leading, stride, 2 * leading, coded};
  }
  if (swizzle == Swizzle::kNone) return {start, atom + 16, 5 * atom, 2 * (atom + 16), coded};
  if (is_mn_major)  // atoms are contiguous along K; after these there is room for one more
    return {start, (2 * kProducts + 1) * atom, atom, 2 * atom, coded};
  // If a row is too short for all steps along K, the next step follows after all rows.
  const bool in_row = span >= 32 * kProducts;
  const std::uint32_t stride = extent > 128 ? atom : 2 * atom;
  return {start, 16, stride, in_row ? 32 : extent / 8 * stride, coded};
}

struct Shape {
  const char* name;
  Case which;
  int columns;
  bool a_is_mn_major;
  bool b_is_mn_major;
  bool a_in_shared;
  int outputs = 1;  // accumulators
};

constexpr Shape shape(const char* name, Case which, int columns) {
  return {name, which, columns, false, false, true};
}

constexpr Shape kShapes[] = {
    shape("n8", Case::kWgmma8, 8),       shape("n16", Case::kWgmma16, 16),
    shape("n32", Case::kWgmma32, 32),    shape("n64", Case::kWgmma64, 64),
    shape("n96", Case::kWgmma96, 96),    shape("n128", Case::kWgmma128, 128),
    shape("n192", Case::kWgmma192, 192), shape("n256", Case::kWgmma256, 256),
    shape("n48", Case::kWgmma48, 48),    shape("n72", Case::kWgmma72, 72)};
constexpr Shape kMajors[] = {{"k_k", Case::kWgmma128, 128, false, false, true},
                             {"k_mn", Case::kWgmmaKMn, 128, false, true, true},
                             {"mn_k", Case::kWgmmaMnK, 128, true, false, true},
                             {"mn_mn", Case::kWgmmaMnMn, 128, true, true, true}};
constexpr Shape kRegisters[] = {{"registers_k", Case::kWgmmaRegistersK, 64, false, false, false},
                                {"registers_mn", Case::kWgmmaRegistersMn, 64, false, true, false},
                                {"beside", Case::kWgmmaBeside, 72, false, true, false}};
constexpr Shape kTwoGroups = {"two_groups", Case::kWgmmaTwoGroups, 64, false, false, true, 2};

enum class Kind { kAny, kSpecial };

std::uint32_t half(Generator& random, const HalfFormat& format, Kind kind) {
  if (kind == Kind::kAny || random.below(64) != 0) return random_half(random, format, -4, 4);
  const std::uint32_t least_normal = 1u << format.mantissa_bits;
  return random.one_of({0x8000u, 1u, least_normal - 1, least_normal, format.infinity - 1,
                        format.infinity, format.infinity | 0x8000u, format.infinity + 1});
}

ConformanceCase row(const Shape& shape, Dtype type, Swizzle swizzle, Kind kind = Kind::kAny) {
  ConformanceCase result;
  const bool is_fp16 = type == Dtype::kFp16;
  result.name = fmt::format("wgmma_{}_{}_{}{}", is_fp16 ? "f16" : "bf16", shape.name,
                            kSwizzleNames[static_cast<std::size_t>(swizzle)],
                            kind == Kind::kSpecial ? "_special" : "");
  result.kernel = "wgmma";
  result.which = shape.which;
  result.wrappers = {"wgmma_m64k16",      "wgmma_fence", "wgmma_commit_group", "wgmma_wait_group",
                     "shared_descriptor", "pin",         "operator[]"};
  result.output_words = std::size_t{2} * kThreads *
                        static_cast<std::size_t>(output_count(shape.columns / 2)) *
                        static_cast<std::size_t>(shape.outputs);
  result.rule = accumulated(16 * kProducts + 1);
  result.input = [=](Generator& random) {
    Words words = layout(0, shape.a_is_mn_major, kRows, swizzle);
    for (const std::uint32_t word :
         layout(kStartB, shape.b_is_mn_major, static_cast<std::uint32_t>(shape.columns), swizzle))
      words.push_back(word);
    words.push_back(is_fp16 ? 1 : 0);
    const HalfFormat& format = is_fp16 ? kF16Format : kBf16Format;
    for (std::size_t i = 0; i < kImageWords; ++i) {
      const std::uint32_t low = half(random, format, kind);
      words.push_back(pair_of(low, half(random, format, kind)));
    }
    return words;
  };
  return result;
}

}  // namespace

ConformanceKernel wgmma_kernel() {
  return {.name = "wgmma",
          .threads = kThreads,
          .shared_bytes = 4 * static_cast<int>(kImageWords),
          .least_arch = "sm_90a"};
}

std::vector<ConformanceCase> wgmma_cases() {
  using enum Swizzle;
  std::vector<ConformanceCase> rows;
  for (const Dtype type : {Dtype::kBf16, Dtype::kFp16}) {
    for (const Shape& registers : kRegisters) rows.push_back(row(registers, type, k128B));
    rows.push_back(row(kTwoGroups, type, k64B));
    rows.push_back(row(kShapes[3], type, k128B, Kind::kSpecial));
    rows.push_back(row(kShapes[7], type, k128B));
  }
  for (const Shape& other : kShapes)
    if (other.columns < 256) rows.push_back(row(other, Dtype::kBf16, k128B));
  for (const Shape& majors : kMajors)
    for (const Swizzle swizzle : {kNone, k32B, k64B, k128B})
      rows.push_back(row(majors, swizzle == k64B ? Dtype::kFp16 : Dtype::kBf16, swizzle));
  return rows;
}

}  // namespace lazyrope
