#include "runtime/emulator/matrix.h"

#include <cmath>
#include <cstdint>
#include <limits>
#include <vector>

#include "runtime/base/half.h"

namespace lazyrope {
namespace {

std::vector<float> make_fp16_values() {
  std::vector<float> all(1U << 16);
  for (std::size_t bits = 0; bits < all.size(); ++bits)
    all[bits] = from_fp16(static_cast<std::uint16_t>(bits));
  return all;
}

const std::vector<float>& fp16_values() {
  static const std::vector<float> values = make_fp16_values();
  return values;
}

float from_e4m3(std::size_t bits) {
  const float sign = bits >= 0x80 ? -1.0F : 1.0F;
  const auto exponent = static_cast<int>(bits >> 3 & 0xf);
  const auto mantissa = static_cast<float>(bits & 7);
  if ((bits & 0x7f) == 0x7f) return std::numeric_limits<float>::quiet_NaN();
  if (exponent == 0) return sign * std::ldexp(mantissa, -9);
  return sign * std::ldexp(8.0F + mantissa, exponent - 10);
}

const std::vector<float>& e4m3_values() {
  static const std::vector<float> values = [] {
    std::vector<float> all(1U << 8);
    for (std::size_t bits = 0; bits < all.size(); ++bits) all[bits] = from_e4m3(bits);
    return all;
  }();
  return values;
}

// The first call is made when the library is loaded, or by a static initialiser before that: a
// child that is forked during a later first call would wait for it for ever.
[[gnu::constructor]] void load_fp16_values() {
  (void)fp16_values();
  (void)e4m3_values();
}

struct Pair {
  float low;
  float high;
};

Pair pair_of(EmulatedElement element, uint32 bits) {
  return {value_of(element, static_cast<std::uint16_t>(bits)),
          value_of(element, static_cast<std::uint16_t>(bits >> 16))};
}

}  // namespace

float value_of(EmulatedElement element, std::uint16_t bits) {
  if (element == EmulatedElement::kFp16) return fp16_values()[bits];
  if (element == EmulatedElement::kE4m3) return e4m3_values().at(bits);
  return from_bf16(bits);
}

void multiply_m16n8k16(EmulatedElement element, std::span<MmaLane* const> lanes) {
  constexpr std::size_t kRows = 16;
  constexpr std::size_t kColumns = 8;
  constexpr std::size_t kDepth = 16;
  double a[kRows][kDepth];
  double b[kDepth][kColumns];
  for (std::size_t lane = 0; lane < lanes.size(); ++lane) {
    const MmaLane& from = *lanes[lane];
    const std::size_t group = lane / 4;
    const std::size_t first = lane % 4 * 2;
    for (std::size_t i = 0; i < 4; ++i) {
      const Pair pair = pair_of(element, from.a[i]);
      double* to = &a[group + i % 2 * 8][first + i / 2 * 8];
      to[0] = pair.low;
      to[1] = pair.high;
    }
    for (std::size_t i = 0; i < 2; ++i) {
      const Pair pair = pair_of(element, from.b[i]);
      b[first + i * 8][group] = pair.low;
      b[first + i * 8 + 1][group] = pair.high;
    }
  }
  double d[kRows][kColumns];
  const auto element_of = [&](std::size_t lane, std::size_t i) -> double& {
    return d[lane / 4 + i / 2 * 8][lane % 4 * 2 + i % 2];
  };
  for (std::size_t lane = 0; lane < lanes.size(); ++lane)
    for (std::size_t i = 0; i < 4; ++i) element_of(lane, i) = lanes[lane]->d[i];
  for (std::size_t row = 0; row < kRows; ++row)
    for (std::size_t k = 0; k < kDepth; ++k)
      for (std::size_t column = 0; column < kColumns; ++column)
        d[row][column] += a[row][k] * b[k][column];
  for (std::size_t lane = 0; lane < lanes.size(); ++lane)
    for (std::size_t i = 0; i < 4; ++i) lanes[lane]->d[i] = static_cast<float>(element_of(lane, i));
}

}  // namespace lazyrope
