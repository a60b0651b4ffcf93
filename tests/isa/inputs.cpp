#include "tests/isa/inputs.h"

#include <bit>
#include <utility>

namespace lazyrope {
namespace {

constexpr std::uint32_t kSign = 0x80000000u;
constexpr int kBias = 127;
constexpr int kMantissaBits = 23;
constexpr std::uint32_t kMantissa = (1u << kMantissaBits) - 1;

// Returns `bit` or 0, each half of the time.
std::uint32_t maybe(Generator& random, std::uint32_t bit) { return random.below(2) * bit; }

std::uint32_t exponent_between(Generator& random, int low, int high) {
  return static_cast<std::uint32_t>(low) + random.below(static_cast<std::uint32_t>(high - low));
}

}  // namespace

std::uint64_t Generator::bits64() {
  state_ += 0x9e3779b97f4a7c15u;
  std::uint64_t z = state_;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

Words Generator::permutation(std::uint32_t limit) {
  Words result(limit);
  for (std::uint32_t i = 0; i < limit; ++i) result[i] = i;
  for (std::uint32_t i = limit; i > 1; --i) std::swap(result[i - 1], result[below(i)]);
  return result;
}

std::function<Words(Generator&)> random_words(std::size_t count) {
  return [=](Generator& random) {
    Words words(count);
    for (std::uint32_t& word : words) word = random.bits32();
    return words;
  };
}

const Words& special_floats() {
  static const Words bits = [] {
    Words result;
    for (const std::uint32_t magnitude :
         {0x00000000u, 0x00000001u, 0x00000002u, 0x00400000u, 0x007fffffu, 0x00800000u,
          0x00800001u, 0x00ffffffu, 0x3f7fffffu, 0x3f800000u, 0x3f800001u, 0x7e7fffffu,
          0x7e800000u, 0x7e800001u, 0x7f000000u, 0x7f7fffffu, 0x7f800000u, 0x7f800001u,
          0x7fa00000u, 0x7fc00000u, 0x7fc12345u, 0x7fffffffu}) {
      result.push_back(magnitude);
      result.push_back(magnitude | kSign);
    }
    return result;
  }();
  return bits;
}

std::uint32_t random_float(Generator& random) { return random.bits32(); }

std::uint32_t random_float(Generator& random, int low, int high) {
  const std::uint32_t exponent = exponent_between(random, low + kBias, high + kBias);
  const std::uint32_t mantissa = random.bits32() & kMantissa;
  return maybe(random, kSign) | exponent << kMantissaBits | mantissa;
}

std::uint32_t uniform_float(Generator& random, double limit) {
  const double unit = static_cast<double>(random.bits32()) * 0x1p-31 - 1.0;
  return std::bit_cast<std::uint32_t>(static_cast<float>(unit * limit));
}

Words special_halves(const HalfFormat& format) {
  const std::uint32_t least_normal = 1u << format.mantissa_bits;
  const std::uint32_t one = (format.infinity >> 1) & ~(least_normal - 1);
  Words result;
  for (const std::uint32_t magnitude :
       {0u, 1u, least_normal - 1, least_normal, least_normal + 1, one - 1, one, one + 1,
        format.infinity - 1, format.infinity, format.infinity + 1, 0x7fffu}) {
    result.push_back(magnitude);
    result.push_back(magnitude | 0x8000u);
  }
  return result;
}

std::uint32_t random_half(Generator& random, const HalfFormat& format, int low, int high) {
  const int bias = static_cast<int>(format.infinity >> (format.mantissa_bits + 1));
  const std::uint32_t exponent = exponent_between(random, low + bias, high + bias);
  const std::uint32_t mantissa = random.bits32() & ((1u << format.mantissa_bits) - 1);
  return maybe(random, 0x8000u) | exponent << format.mantissa_bits | mantissa;
}

std::uint32_t near_halfway(Generator& random, const HalfFormat& format) {
  const int dropped = kMantissaBits - format.mantissa_bits;
  const int least = format.infinity == kF16Format.infinity ? -26 : -126;
  const int most = format.infinity == kF16Format.infinity ? 17 : 128;
  std::uint32_t bits = random_float(random, least, most);
  // A subnormal 16-bit number has fewer mantissa bits, so that its last bit is a higher one.
  const int exponent = static_cast<int>(bits >> kMantissaBits & 0xff) - kBias;
  const int subnormal_bits =
      format.infinity == kF16Format.infinity && exponent < -14 ? -14 - exponent : 0;
  const int half_at = dropped - 1 + subnormal_bits;
  if (half_at >= kMantissaBits) return bits;
  bits = (bits >> half_at | 1u) << half_at;
  return bits + random.one_of({0u, 1u, 0xffffffffu});
}

}  // namespace lazyrope
