#include "tests/isa/witnesses.h"

#include <array>
#include <bit>
#include <cmath>
#include <numbers>

namespace lazyrope {
namespace {

constexpr int kThreads = 64;
constexpr int kWarp = 32;
constexpr int kCtas = 5;        // of grid.cuh
constexpr int kNumbers = 4096;  // of math.cuh
constexpr int kProducts = 16;

using Operand = std::function<std::uint32_t(Generator&, std::size_t i)>;

std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }

// The special numbers, then what `others` gives.
Operand specials_then(const std::function<std::uint32_t(Generator&)>& others) {
  return [=](Generator& random, std::size_t i) {
    return i < special_floats().size() ? special_floats()[i] : others(random);
  };
}

// Every other number of any exponent.
std::uint32_t any_float(Generator& random) { return random_float(random); }

std::uint32_t argument_of_ex2(Generator& random) {
  constexpr float kLeastNormal = -126.0f;
  constexpr float kTooLarge = 128.0f;
  switch (random.below(4)) {
    case 0:
      return any_float(random);
    case 1:  // around where results become subnormal, or infinite
      return bits_of(random.below(2) == 0 ? kLeastNormal : kTooLarge) + random.below(9) - 4;
    default:
      return uniform_float(random, 150.0);
  }
}

std::uint32_t argument_of_lg2(Generator& random) {
  if (random.below(4) == 0) return bits_of(1.0f) + random.below(1u << 12) - (1u << 11);
  return random.below(2) == 0 ? any_float(random) : random_float(random, -2, 2);
}

std::uint32_t argument_of_rcp(Generator& random) {
  if (random.below(4) == 0) return random_float(random, 124, 128);  // subnormal results
  return any_float(random);
}

std::uint32_t argument_of_turn(Generator& random) {
  return random.below(4) == 0 ? random_float(random, -40, 2)
                              : uniform_float(random, 2.0 * std::numbers::pi);
}

// Without those that the manual promises nothing for.
std::uint32_t special_turn(Generator& random, std::size_t i) {
  const std::uint32_t bits = specials_then(argument_of_turn)(random, i);
  const float x = std::bit_cast<float>(bits);
  return std::isfinite(x) && std::abs(x) > 6.25f ? argument_of_turn(random) : bits;
}

// All pairs of special numbers, then any.
Operand special_pairs(bool second) {
  return [=](Generator& random, std::size_t i) {
    const Words& specials = special_floats();
    if (i >= specials.size() * specials.size()) return any_float(random);
    return specials[second ? i / specials.size() : i % specials.size()];
  };
}

Operand to_be_rounded(const HalfFormat& format, bool second) {
  return [=](Generator& random, std::size_t i) {
    const std::size_t at = second ? i - special_floats().size() : i;  // beside other numbers
    return specials_then([=](Generator& rest) {
      return rest.below(4) == 0 ? any_float(rest) : near_halfway(rest, format);
    })(random, at);
  };
}

std::uint32_t pair_of(std::uint32_t low, std::uint32_t high) { return low | high << 16; }

std::uint32_t any_bits(Generator& random, std::size_t i) {
  return i < 0x8000
             ? pair_of(static_cast<std::uint32_t>(i * 16 + random.below(16)), random.bits32() >> 16)
             : random.bits32();
}

std::uint32_t one_of_16(const HalfFormat& format) {
  return format.infinity >> 1 & ~((1u << format.mantissa_bits) - 1);
}

// One half of an operand of fma. The products of the last kind lie in the middle of two numbers, or
// half a place above one, and what is added or multiplied tips them: rounding twice would not see
// it.
std::uint32_t fma_half(Generator& random, const HalfFormat& format, int operand, std::size_t i) {
  const Words specials = special_halves(format);
  const std::uint32_t one = one_of_16(format);
  const std::uint32_t half = 1u << (format.mantissa_bits - 1);
  switch (i % 4) {
    case 0:
      return specials[random.below(static_cast<std::uint32_t>(specials.size()))];
    case 1:
      return random_half(random, format, -4, 4);
    case 2:  // the least subnormal numbers, and sums that are
      return operand == 2 ? random.below(1u << format.mantissa_bits)
                          : random_half(random, format, -8, -6);
    default:
      if (operand == 0) return one + 1 + 2 * random.below(4);
      if (operand == 1) return random.one_of({one | half, one - 1, one - 2, one});
      return random.one_of({0u, 0x8000u}) |
             random_half(random, format, -13, static_cast<int>(random.below(2)) * 24 - 12);
  }
}

Operand fma_operand(const HalfFormat& format, int operand) {
  return [=](Generator& random, std::size_t i) {
    const std::uint32_t low = fma_half(random, format, operand, i);
    return pair_of(low, fma_half(random, format, operand, i / 4));
  };
}

std::uint32_t nothing(Generator&, std::size_t) { return 0; }

Witness elementwise(std::string wrapper, Case which, Rule rule, const Operand& a,
                    const Operand& b = nothing, const Operand& c = nothing, int results = 1) {
  Witness row;
  row.name = wrapper;
  row.text = "math";
  row.which = which;
  row.wrappers = {std::move(wrapper), "bits_as_float", "float_as_bits", "ld_global", "st_global"};
  row.count = kNumbers;
  row.output_words = static_cast<std::size_t>(results) * kNumbers;
  row.input = [=](Generator& random) {
    Words words;
    for (const Operand& operand : {a, b, c})
      for (std::size_t i = 0; i < kNumbers; ++i) words.push_back(operand(random, i));
    return words;
  };
  row.rule = std::move(rule);
  return row;
}

std::vector<Witness> math_rows() {
  const Rule turns = within_error(0x1p-20 * std::numbers::sqrt2 / 2.0, false);
  return {
      elementwise("ex2_approx_ftz_f32", Case::kEx2, within_ulps(2), specials_then(argument_of_ex2)),
      elementwise("lg2_approx_ftz_f32", Case::kLg2, within_error(0x1p-22, true),
                  specials_then(argument_of_lg2)),
      elementwise("rcp_approx_ftz_f32", Case::kRcp, within_ulps(1), specials_then(argument_of_rcp)),
      elementwise("sin_approx_f32", Case::kSin, turns, special_turn),
      elementwise("cos_approx_f32", Case::kCos, turns, special_turn),
      elementwise("max_f32", Case::kMax, same_bits(), special_pairs(false), special_pairs(true)),
      elementwise("infinity_f32", Case::kBits, same_bits(), specials_then(any_float), nothing,
                  nothing, 2),
      elementwise("cvt_rn_bf16x2_f32", Case::kToBf16, same_bits(),
                  to_be_rounded(kBf16Format, false), to_be_rounded(kBf16Format, true)),
      elementwise("cvt_rn_f16x2_f32", Case::kToF16, same_bits(), to_be_rounded(kF16Format, false),
                  to_be_rounded(kF16Format, true)),
      elementwise("cvt_f32_bf16x2", Case::kFromBf16, same_bits(), any_bits, nothing, nothing, 2),
      elementwise("cvt_f32_f16x2", Case::kFromF16, same_bits(), any_bits, nothing, nothing, 2),
      elementwise("fma_rn_bf16x2", Case::kFmaBf16, same_bits(), fma_operand(kBf16Format, 0),
                  fma_operand(kBf16Format, 1), fma_operand(kBf16Format, 2)),
      elementwise("fma_rn_f16x2", Case::kFmaF16, same_bits(), fma_operand(kF16Format, 0),
                  fma_operand(kF16Format, 1), fma_operand(kF16Format, 2)),
  };
}

constexpr int kImageWords = 1024;  // as in matrix.cuh
constexpr int kLoads = 16;

// Where a lane's row lies: one behind the other, in rows of 80 bytes, in swizzled ones of 128, all
// at one place, in any order; anywhere.
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
  const Words order = random.permutation(kWarp);
  for (std::uint32_t load = 0; load < kLoads; ++load)
    for (std::uint32_t lane = 0; lane < kWarp; ++lane)
      words.push_back(row_offset(random, load, lane, order));
  return words;
}

Witness matrix_load(std::string wrapper, Case which) {
  Witness row;
  row.name = wrapper;
  row.text = "matrix";
  row.which = which;
  row.wrappers = {std::move(wrapper)};
  row.count = kLoads;
  row.output_words = std::size_t{4} * kWarp * kLoads;
  row.input = rows_to_load;
  return row;
}

// A whole number, or another that the format has exactly.
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

// What the operands of product `i` are like.
enum class Kind : std::size_t { kNear, kWide, kCancelling, kSubnormal, kSpecial, kZero };
constexpr std::size_t kKinds = 6;

std::uint32_t element(Generator& random, const HalfFormat& format, Kind kind) {
  const int wide = format.infinity == kF16Format.infinity ? 12 : 40;
  const std::uint32_t subnormals = (1u << format.mantissa_bits) - 1;
  switch (kind) {
    case Kind::kWide:
      return random_half(random, format, -wide, wide);
    case Kind::kSubnormal:
      return random.bits32() & (random.below(2) == 0 ? 0x8000u | subnormals : subnormals);
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

// Of one lane: 4 registers of A, 2 of B, 4 of C. Of a kCancelling product each term has one of the
// same size and the other sign beside it.
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
    for (int lane = 0; lane < kWarp; ++lane)
      push_operands(words, random, format, static_cast<Kind>(i % kKinds));
  return words;
}

// Whole numbers, of which every sum of products is exact in any order.
Words whole_operands(Generator& random, const HalfFormat& format) {
  Words words;
  for (int i = 0; i < kProducts * kWarp; ++i) {
    for (int j = 0; j < 6; ++j) {
      const std::uint32_t low = exact_half(format, whole(random, 100));
      words.push_back(pair_of(low, exact_half(format, whole(random, 100))));
    }
    for (int j = 0; j < 4; ++j) words.push_back(bits_of(whole(random, 1 << 20)));
  }
  return words;
}

Witness product(std::string name, std::string wrapper, Case which, const HalfFormat& format,
                Words (*operands)(Generator&, const HalfFormat&), Rule rule) {
  Witness row;
  row.name = std::move(name);
  row.text = "matrix";
  row.which = which;
  row.wrappers = {std::move(wrapper)};
  row.count = kProducts;
  row.output_words = std::size_t{8} * kWarp * kProducts;
  row.input = [=](Generator& random) { return operands(random, format); };
  row.rule = std::move(rule);
  return row;
}

std::vector<Witness> matrix_rows() {
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

std::function<Words(Generator&)> random_words(std::size_t count) {
  return [=](Generator& random) {
    Words words(count);
    for (std::uint32_t& word : words) word = random.bits32();
    return words;
  };
}

// As memory.cuh reads them. Some copies have no bytes and come from where nothing is; one has the
// last bytes that there are.
Words copies(Generator& random, std::uint32_t size) {
  constexpr std::uint32_t kCopies = 2 * kThreads;
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

Witness copy_row(std::string name, std::string wrapper, Case which, std::uint32_t size) {
  Witness row;
  row.name = std::move(name);
  row.text = "memory";
  row.which = which;
  row.wrappers = {std::move(wrapper), "cp_async_commit_group", "cp_async_wait_group"};
  row.output_words = std::size_t{3} * kThreads * size / 4;
  row.input = [=](Generator& random) { return copies(random, size); };
  return row;
}

std::vector<Witness> memory_rows() {
  constexpr std::size_t kGlobalWords = 14 * kThreads + kThreads / 2 + kThreads / 4;
  return {
      {.name = "shared_memory",
       .text = "memory",
       .which = Case::kShared,
       .wrappers = {"ld_shared", "st_shared", "dynamic_shared_memory", "operator+", "operator^",
                    "operator==", "bar_sync"},
       .output_words = std::size_t{11} * kThreads,
       .input = random_words(std::size_t{10} * kThreads)},
      {.name = "global_memory",
       .text = "memory",
       .which = Case::kGlobal,
       .wrappers = {"ld_global", "ld_global_nc", "st_global"},
       .output_words = kGlobalWords,
       .input = random_words(kGlobalWords)},
      copy_row("cp_async_cg_16", "cp_async_cg_16", Case::kCopy16, 16),
      copy_row("cp_async_cg_16_whole_lines", "cp_async_cg_16", Case::kCopy16WholeLines, 16),
      copy_row("cp_async_ca_4", "cp_async_ca_4", Case::kCopy4, 4),
  };
}

// Of each lane a value of two words, a lane, and nothing.
Words exchanges(Generator& random) {
  Words words;
  for (std::size_t i = 0; i < std::size_t{kNumbers} / 4; ++i) {
    words.push_back(i < special_floats().size() ? special_floats()[i] : random.bits32());
    words.push_back(random.bits32());
    words.push_back(i / kWarp < kWarp / 2 ? static_cast<std::uint32_t>(i / kWarp) * 2 + 1
                                          : random.below(kWarp));
    words.push_back(0);
  }
  return words;
}

// None, all, one, and some lanes.
Words predicates(Generator& random) {
  Words words;
  for (std::uint32_t i = 0; i < kWarp; ++i)
    for (std::uint32_t lane = 0; lane < kWarp; ++lane)
      words.push_back(std::array{0u, 0x80000000u, lane == i ? 1u : 0u, random.below(2)}[i % 4]);
  return words;
}

std::vector<Witness> warp_rows() {
  constexpr std::size_t kLanes = std::size_t{kWarp} * kWarp;
  return {
      {.name = "shfl_sync",
       .text = "warp",
       .which = Case::kShfl,
       .wrappers = {"shfl_sync_idx", "shfl_sync_bfly", "shfl_sync_up"},
       .count = kWarp,
       .output_words = 6 * kLanes,
       .input = exchanges},
      {.name = "vote_sync",
       .text = "warp",
       .which = Case::kVote,
       .wrappers = {"vote_sync_ballot", "vote_sync_any"},
       .count = kWarp,
       .output_words = 2 * kLanes,
       .input = predicates},
      {.name = "bar_warp_sync",
       .text = "warp",
       .which = Case::kWarpBarrier,
       .wrappers = {"bar_warp_sync"},
       .count = kWarp,
       .output_words = kLanes,
       .input = random_words(kLanes)},
  };
}

// What an atomic finds, and its operand: the bound of atom.inc.
Words counters(Generator& random) {
  Words words;
  for (int i = 0; i < kCtas * kThreads; ++i) {
    const std::uint32_t last =
        random.one_of({0u, 1u, 7u, 0x7fffffffu, 0xffffffffu, random.bits32()});
    words.push_back(random.one_of({0u, last - 1, last, last + 1, 0xffffffffu}));
    words.push_back(last);
  }
  return words;
}

Words rows_of_ctas(Generator& random) {
  Words words = random_words(4 + std::size_t{2} * kCtas * kThreads)(random);
  words[0] = words[1] = 0;  // counter and flag
  return words;
}

std::vector<Witness> grid_rows() {
  constexpr std::size_t kAllThreads = std::size_t{kCtas} * kThreads;
  return {
      {.name = "place",
       .text = "grid",
       .which = Case::kPlace,
       .wrappers = {"thread_index", "block_index", "block_threads", "grid_blocks", "lane_index",
                    "warp_index"},
       .output_words = 6 * kAllThreads,
       .input = random_words(1)},
      {.name = "atomics",
       .text = "grid",
       .which = Case::kAtomics,
       .wrappers = {"atom_acq_rel_gpu_inc", "atom_relaxed_gpu_exch", "ld_acquire_gpu"},
       .output_words = 4 * kAllThreads,
       .input = counters},
      {.name = "last_cta",
       .text = "grid",
       .which = Case::kLastCta,
       .wrappers = {"fence_acq_rel_gpu", "bar_sync", "atom_acq_rel_gpu_inc"},
       .output_words = std::size_t{kThreads} + 2 + kCtas,
       .input = rows_of_ctas},
  };
}

}  // namespace

const std::vector<WitnessText>& witness_texts() {
  static const std::vector<WitnessText> rows = {
      {.name = "math", .ctas = 2},
      {.name = "matrix", .shared_bytes = 4 * kImageWords},
      {.name = "memory", .shared_bytes = 2 * 16 * kThreads},
      {.name = "warp", .shared_bytes = 4 * kThreads},
      {.name = "grid", .ctas = kCtas, .shared_bytes = 16},
  };
  return rows;
}

const std::vector<Witness>& witnesses() {
  static const std::vector<Witness> rows = [] {
    std::vector<Witness> all;
    for (const auto& room : {math_rows(), matrix_rows(), memory_rows(), warp_rows(), grid_rows()})
      all.insert(all.end(), room.begin(), room.end());
    return all;
  }();
  return rows;
}

// FNV-1a.
std::uint64_t seed_of(const Witness& witness) {
  std::uint64_t hash = 0xcbf29ce484222325u;
  for (const char c : witness.name) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3u;
  return hash;
}

Words input_of(const Witness& witness) {
  Generator random(seed_of(witness));
  return witness.input(random);
}

}  // namespace lazyrope
