#include <bit>
#include <cmath>
#include <numbers>

#include "tests/isa/rows/rows.h"

namespace lazyrope {
namespace {

constexpr int kNumbers = 4096;

using Operand = std::function<std::uint32_t(Generator&, std::size_t i)>;

// Returns the special numbers first, then numbers that `others` draws.
Operand specials_then(const std::function<std::uint32_t(Generator&)>& others) {
  return [=](Generator& random, std::size_t i) {
    return i < special_floats().size() ? special_floats()[i] : others(random);
  };
}

// Draws a number of any exponent.
std::uint32_t any_float(Generator& random) { return random_float(random); }

std::uint32_t argument_of_ex2(Generator& random) {
  switch (random.below(4)) {
    case 0:
      return any_float(random);
    case 1: {  // near the arguments where results become subnormal or infinite
      const std::uint32_t bits = random.one_of({bits_of(-126.0f), bits_of(128.0f)});
      return bits + random.below(9) - 4;
    }
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

std::uint32_t trig_argument(Generator& random) {
  return random.below(4) == 0 ? random_float(random, -40, 2)
                              : uniform_float(random, 2.0 * std::numbers::pi);
}

// Replaces special arguments for which the manual promises no accuracy.
std::uint32_t special_trig_argument(Generator& random, std::size_t i) {
  const std::uint32_t bits = specials_then(trig_argument)(random, i);
  const auto x = std::bit_cast<float>(bits);
  return std::isfinite(x) && std::abs(x) > 6.25f ? trig_argument(random) : bits;
}

// Returns one operand of all pairs of special numbers, then random numbers.
Operand special_pairs(bool second) {
  return [=](Generator& random, std::size_t i) {
    const Words& specials = special_floats();
    if (i >= specials.size() * specials.size()) return any_float(random);
    return specials[second ? i / specials.size() : i % specials.size()];
  };
}

Operand to_be_rounded(const HalfFormat& format, bool second) {
  return [=](Generator& random, std::size_t i) {
    // The special numbers of the second operand come after those of the first. A negative index
    // wraps around to a large one.
    const std::size_t at = second ? i - special_floats().size() : i;
    return specials_then([=](Generator& rest) {
      return rest.below(4) == 0 ? any_float(rest) : near_halfway(rest, format);
    })(random, at);
  };
}

// Draws a random high half. The low halves of all elements step through the 16-bit range by 16.
std::uint32_t any_bits(Generator& random, std::size_t i) {
  const std::uint32_t high = random.bits32() >> 16;
  return pair_of(static_cast<std::uint32_t>(i * 16 + random.below(16)), high);
}

std::uint32_t one_of_16(const HalfFormat& format) {
  return format.infinity >> 1 & ~((1u << format.mantissa_bits) - 1);
}

// Draws one half of an operand of fma. In the last case the exact product is halfway between two
// numbers or near 1, and a small addend decides the rounding: an implementation that rounds twice
// fails.
std::uint32_t fma_half(Generator& random, const HalfFormat& format, int operand, std::size_t i) {
  const Words specials = special_halves(format);
  const std::uint32_t one = one_of_16(format);
  const std::uint32_t half = 1u << (format.mantissa_bits - 1);
  switch (i % 4) {
    case 0:
      return specials[random.below(static_cast<std::uint32_t>(specials.size()))];
    case 1:
      return random_half(random, format, -4, 4);
    case 2:  // subnormal addends and sums
      return operand == 2 ? random.below(1u << format.mantissa_bits)
                          : random_half(random, format, -8, -6);
    default:
      if (operand == 0) return one + 1 + 2 * random.below(4);
      if (operand == 1) return random.one_of({one | half, one - 1, one - 2, one});
      return random_half(random, format, -13, random.below(2) == 0 ? -12 : 12);
  }
}

Operand fma_operand(const HalfFormat& format, int operand) {
  return [=](Generator& random, std::size_t i) {
    const std::uint32_t low = fma_half(random, format, operand, i);
    return pair_of(low, fma_half(random, format, operand, i / 4));
  };
}

std::uint32_t nothing(Generator&, std::size_t) { return 0; }

ConformanceCase elementwise(std::string wrapper, Case which, Rule rule, const Operand& a,
                            const Operand& b = nothing, const Operand& c = nothing,
                            int results = 1) {
  ConformanceCase row;
  row.name = wrapper;
  row.kernel = "math";
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

}  // namespace

ConformanceKernel math_kernel() { return {.name = "math", .ctas = 2}; }

std::vector<ConformanceCase> math_cases() {
  const Rule close = within_error(0x1p-20 * std::numbers::sqrt2 / 2.0, false);
  return {
      elementwise("ex2_approx_ftz_f32", Case::kEx2, within_ulps(2), specials_then(argument_of_ex2)),
      elementwise("lg2_approx_ftz_f32", Case::kLg2, within_error(0x1p-22, true),
                  specials_then(argument_of_lg2)),
      elementwise("rcp_approx_ftz_f32", Case::kRcp, within_ulps(1), specials_then(argument_of_rcp)),
      elementwise("sin_approx_f32", Case::kSin, close, special_trig_argument),
      elementwise("cos_approx_f32", Case::kCos, close, special_trig_argument),
      elementwise("max_f32", Case::kMax, same_bits(), special_pairs(false), special_pairs(true)),
      elementwise("max_u16x2", Case::kMaxU16, same_bits(), any_bits, any_bits),
      elementwise("prmt_b32", Case::kPermute, same_bits(), any_bits, any_bits, any_bits),
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

}  // namespace lazyrope
