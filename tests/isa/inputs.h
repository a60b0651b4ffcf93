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

// A random number generator, SplitMix64. It gives the same numbers on every machine, unlike the
// distributions of the standard library. Draw one number per statement, because the operands of an
// expression are evaluated in any order.
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
  // Returns a random permutation of 0 to limit - 1.
  Words permutation(std::uint32_t limit);

 private:
  std::uint64_t state_;
};

inline std::uint32_t bits_of(float x) { return std::bit_cast<std::uint32_t>(x); }
inline std::uint32_t pair_of(std::uint32_t low, std::uint32_t high) { return low | high << 16; }

// Returns a function that draws `count` random words.
std::function<Words(Generator&)> random_words(std::size_t count);

// A 16-bit floating-point format.
struct HalfFormat {
  int mantissa_bits;
  std::uint32_t infinity;  // the bits of infinity
};
inline constexpr HalfFormat kBf16Format = {7, 0x7f80};
inline constexpr HalfFormat kF16Format = {10, 0x7c00};

// Returns the bits of special fp32 numbers: zeros, infinities, quiet and signalling NaN, the least
// and the largest subnormal and normal numbers, 1 and its neighbours, each with both signs.
const Words& special_floats();
// Draws any fp32 bits: every exponent is equally likely.
std::uint32_t random_float(Generator& random);
// Draws a number of either sign whose magnitude is between 2^low and 2^high.
std::uint32_t random_float(Generator& random, int low, int high);
// Draws a number from a uniform distribution between -limit and limit.
std::uint32_t uniform_float(Generator& random, double limit);

// Does the same for a 16-bit format.
Words special_halves(const HalfFormat& format);
std::uint32_t random_half(Generator& random, const HalfFormat& format, int low, int high);

// Draws an fp32 number at, just below or just above the middle between two neighbouring numbers of
// the 16-bit format. Some are subnormal or too large in that format.
std::uint32_t near_halfway(Generator& random, const HalfFormat& format);

}  // namespace lazyrope
