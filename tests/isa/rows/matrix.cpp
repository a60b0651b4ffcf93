#include "tests/isa/rows/rows.h"

namespace lazyrope {
namespace {

constexpr int kImageWords = 1024;  // as in matrix.cuh
constexpr int kProducts = 16;
constexpr int kLoads = 16;

// Returns the byte offset of a lane's row. The first loads have rows that are contiguous, 80 bytes
// apart, swizzled in rows of 128 bytes, all the same, or permuted; the others have random rows.
std::uint32_t row_offset(Generator& random, std::uint32_t load, std::uint32_t lane,
                         const Words& order) {
  switch (load) {
    case 0:
      return 16 * lane;
    case 1:
      return 80 * lane;
    case 2:
      return 128 * lane + 16 * ((lane ^ load) % 8);
    case 3:
      return 48;
    case 4:
      return 16 * order[lane];
    default:
      return 16 * random.below(kImageWords / 4);
  }
}

Words rows_to_load(Generator& random) {
  Words words;
  for (int i = 0; i < kImageWords; ++i) words.push_back(random.bits32());
  const Words order = random.permutation(kConformanceWarp);
  for (std::uint32_t load = 0; load < kLoads; ++load)
    for (std::uint32_t lane = 0; lane < kConformanceWarp; ++lane)
      words.push_back(row_offset(random, load, lane, order));
  return words;
}

ConformanceCase matrix_load(std::string wrapper, Case which) {
  ConformanceCase row;
  row.name = wrapper;
  row.kernel = "matrix";
  row.which = which;
  row.wrappers = {std::move(wrapper)};
  row.count = kLoads;
  row.output_words = std::size_t{4} * kConformanceWarp * kLoads;
  row.input = rows_to_load;
  return row;
}

// Converts a number that the 16-bit format represents exactly.
std::uint32_t exact_half(const HalfFormat& format, float x) {
  if (x == 0.0f) return 0;
  const std::uint32_t bits = bits_of(x);
  const std::uint32_t bias = format.infinity >> (format.mantissa_bits + 1);
  const std::uint32_t magnitude = (bits & 0x7fffffffu) - ((127 - bias) << 23);
  return (bits >> 16 & 0x8000u) | magnitude >> (23 - format.mantissa_bits);
}

float whole(Generator& random, int limit) {
  return static_cast<float>(
      static_cast<int>(random.below(2 * static_cast<std::uint32_t>(limit) + 1)) - limit);
}

// The kind of operands that a product has.
enum class Kind : std::size_t { kNear, kWide, kCancelling, kSubnormal, kSpecial, kZero };
constexpr std::size_t kKinds = 6;

std::uint32_t element(Generator& random, const HalfFormat& format, Kind kind) {
  const int wide = format.infinity == kF16Format.infinity ? 12 : 40;
  const std::uint32_t below_normal = (1u << format.mantissa_bits) - 1;
  switch (kind) {
    case Kind::kWide:
      return random_half(random, format, -wide, wide);
    case Kind::kSubnormal:
      return random.bits32() & (0x8000u | below_normal);
    case Kind::kSpecial:
      if (random.below(16) != 0) return random_half(random, format, -4, 4);
      return random.one_of(
          {0u, 0x8000u, format.infinity, format.infinity | 0x8000u, format.infinity + 1, 0x7fffu});
    case Kind::kZero:
      return random.one_of({0u, 0x8000u});
    default:
      return random_half(random, format, -4, 4);
  }
}

// Draws the operands of one lane: 4 registers of A, 2 of B, 4 of C. In a kCancelling product each
// term is followed by one of the same magnitude and the opposite sign.
void push_operands(Words& words, Generator& random, const HalfFormat& format, Kind kind) {
  const bool cancels = kind == Kind::kCancelling;
  for (int i = 0; i < 4; ++i) {
    const std::uint32_t low = element(random, format, kind);
    words.push_back(pair_of(low, cancels ? low ^ 0x8000u : element(random, format, kind)));
  }
  const Kind kind_of_b = kind == Kind::kSubnormal ? Kind::kWide : kind;
  for (int i = 0; i < 2; ++i) {
    const std::uint32_t low = element(random, format, kind_of_b);
    words.push_back(pair_of(low, cancels ? low : element(random, format, kind_of_b)));
  }
  for (int i = 0; i < 4; ++i)
    words.push_back(kind == Kind::kZero        ? random.one_of({0u, 0x80000000u})
                    : kind == Kind::kSubnormal ? random.below(0x00800000u)
                                               : random_float(random, -24, 4));
}

Words any_operands(Generator& random, const HalfFormat& format) {
  Words words;
  for (std::size_t i = 0; i < kProducts; ++i)
    for (int lane = 0; lane < kConformanceWarp; ++lane)
      push_operands(words, random, format, static_cast<Kind>(i % kKinds));
  return words;
}

// Draws whole numbers whose sums of products are exact in any order.
Words whole_operands(Generator& random, const HalfFormat& format) {
  Words words;
  for (int i = 0; i < kProducts * kConformanceWarp; ++i) {
    for (int j = 0; j < 6; ++j) {
      const std::uint32_t low = exact_half(format, whole(random, 100));
      words.push_back(pair_of(low, exact_half(format, whole(random, 100))));
    }
    for (int j = 0; j < 4; ++j) words.push_back(bits_of(whole(random, 1 << 20)));
  }
  return words;
}

ConformanceCase product(std::string name, std::string wrapper, Case which, const HalfFormat& format,
                        Words (*operands)(Generator&, const HalfFormat&), Rule rule) {
  ConformanceCase row;
  row.name = std::move(name);
  row.kernel = "matrix";
  row.which = which;
  row.wrappers = {std::move(wrapper)};
  row.count = kProducts;
  row.output_words = std::size_t{8} * kConformanceWarp * kProducts;
  row.input = [=](Generator& random) { return operands(random, format); };
  row.rule = std::move(rule);
  return row;
}

}  // namespace

ConformanceKernel matrix_kernel() { return {.name = "matrix", .shared_bytes = 4 * kImageWords}; }

std::vector<ConformanceCase> matrix_cases() {
  constexpr int kTerms = 16;
  const char* bf16 = "mma_m16n8k16_f32_bf16";
  const char* f16 = "mma_m16n8k16_f32_f16";
  return {
      matrix_load("ldmatrix_x4", Case::kLdmatrix),
      matrix_load("ldmatrix_x4_trans", Case::kLdmatrixTrans),
      product(bf16, bf16, Case::kMmaBf16, kBf16Format, any_operands, accumulated(kTerms)),
      product(f16, f16, Case::kMmaF16, kF16Format, any_operands, accumulated(kTerms)),
      product("mma_m16n8k16_f32_bf16_whole", bf16, Case::kMmaBf16, kBf16Format, whole_operands,
              same_bits()),
      product("mma_m16n8k16_f32_f16_whole", f16, Case::kMmaF16, kF16Format, whole_operands,
              same_bits()),
  };
}

}  // namespace lazyrope
