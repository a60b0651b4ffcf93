#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string_view>
#include <vector>

namespace lazyrope {

using Words = std::vector<std::uint32_t>;

// The same numbers on every machine, other than the standard's distributions: SplitMix64. Draw one
// number a statement: the operands of an expression are evaluated in any order.
class Generator {
 public:
  explicit Generator(std::uint64_t seed) : state_(seed) {}

  std::uint64_t bits64();
  std::uint32_t bits32() { return static_cast<std::uint32_t>(bits64() >> 32); }
  std::uint32_t below(std::uint32_t limit) {
    return static_cast<std::uint32_t>(std::uint64_t{bits32()} * limit >> 32);
  }
  std::uint32_t one_of(std::initializer_list<std::uint32_t> values) {
    return values.begin()[below(static_cast<std::uint32_t>(values.size()))];
  }
  // `limit` numbers from 0 on, in any order.
  Words permutation(std::uint32_t limit);

 private:
  std::uint64_t state_;
};

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
inline std::uint32_t pair_of(std::uint32_t low, std::uint32_t high) { return low | high << 16; }

// Makes so many random words.
std::function<Words(Generator&)> random_words(std::size_t count);

// A 16-bit floating-point format.
struct HalfFormat {
  int mantissa_bits;
  std::uint32_t infinity;  // its bits
};
inline constexpr HalfFormat kBf16Format = {7, 0x7f80};
inline constexpr HalfFormat kF16Format = {10, 0x7c00};

// Bits of fp32 numbers: zeros, infinities, quiet and signalling NaN, the least and largest of the
// subnormal and of the normal numbers, 1 and its neighbours, each with both signs.
const Words& special_floats();
// Of each exponent as many.
std::uint32_t random_float(Generator& random);
// Between 2^low and 2^high, of both signs.
std::uint32_t random_float(Generator& random, int low, int high);
// Between -limit and limit, where large numbers are as likely as small ones.
std::uint32_t uniform_float(Generator& random, double limit);

// The same of a 16-bit format.
Words special_halves(const HalfFormat& format);
std::uint32_t random_half(Generator& random, const HalfFormat& format, int low, int high);

// fp32 numbers at, just below and just above the middle of two neighbours of the 16-bit format,
// some of them subnormal or too large there.
std::uint32_t near_halfway(Generator& random, const HalfFormat& format);

}  // namespace lazyrope
