#include "tests/isa/rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdlib>

namespace lazyrope {
namespace {

constexpr std::uint32_t kSign = 0x80000000u;
constexpr std::uint32_t kLeastNormal = 0x00800000u;
constexpr std::size_t kShown = 5;

double number(std::uint32_t bits) { return static_cast<double>(std::bit_cast<float>(bits)); }

// Results that are not finite must be equal, except that all NaN are alike.
bool agree_unless_finite(std::uint32_t recorded, std::uint32_t emulated) {
  return std::isnan(number(recorded)) ? std::isnan(number(emulated)) : recorded == emulated;
}

bool both_finite(std::uint32_t recorded, std::uint32_t emulated) {
  return std::isfinite(number(recorded)) && std::isfinite(number(emulated));
}

// Numbers the normal floats of one sign from 1 on. Zero is 0, and infinity comes last.
std::int64_t ordinal(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & ~kSign;
  return magnitude == 0 ? 0 : std::int64_t{magnitude} - kLeastNormal + 1;
}

bool is_flushed(std::uint32_t bits) {
  const std::uint32_t magnitude = bits & ~kSign;
  return magnitude == 0 || magnitude >= kLeastNormal;
}

bool is_within_ulps(std::uint32_t recorded, std::uint32_t emulated, int ulps) {
  if (std::isnan(number(recorded)) || std::isnan(number(emulated)))
    return agree_unless_finite(recorded, emulated);
  return is_flushed(emulated) && (recorded & kSign) == (emulated & kSign) &&
         std::abs(ordinal(recorded) - ordinal(emulated)) <= ulps;
}

}  // namespace

Rule same_bits() {
  return {"the same bits", [](Rule::Output recorded, Rule::Output emulated, std::size_t i) {
            return recorded[i] == emulated[i];
          }};
}

Rule within_ulps(int ulps) {
  return {fmt::format("within {} ulp, without subnormal results", ulps),
          [ulps](Rule::Output recorded, Rule::Output emulated, std::size_t i) {
            return is_within_ulps(recorded[i], emulated[i], ulps);
          }};
}

Rule within_error(double error, bool relative_above_one) {
  constexpr double kRounding = 0x1p-24;  // relative error of the emulator
  return {fmt::format("within {:.3g}{}", error, relative_above_one ? " (relative above 1)" : ""),
          [=](Rule::Output recorded, Rule::Output emulated, std::size_t i) {
            if (!both_finite(recorded[i], emulated[i]))
              return agree_unless_finite(recorded[i], emulated[i]);
            const double size = std::max(1.0, std::abs(number(recorded[i])));
            return std::abs(number(recorded[i]) - number(emulated[i])) <=
                   (error * (relative_above_one ? size : 1.0)) + (kRounding * size);
          }};
}

Rule accumulated(int terms) {
  return {fmt::format("within {} times 2^-23 of the sum of magnitudes in the next word", 2 * terms),
          [=](Rule::Output recorded, Rule::Output emulated, std::size_t i) {
            if (!both_finite(recorded[i], emulated[i]))
              return agree_unless_finite(recorded[i], emulated[i]);
            const double magnitude = number(recorded[i | 1]);
            return std::abs(number(recorded[i]) - number(emulated[i])) <=
                   2.0 * terms * (0x1p-23 * magnitude + 0x1p-149);
          }};
}

std::string differences(const Rule& rule, Rule::Output recorded, Rule::Output emulated) {
  if (recorded.size() != emulated.size())
    return fmt::format("{} words are recorded, {} emulated", recorded.size(), emulated.size());
  std::string text;
  std::size_t count = 0;
  for (std::size_t i = 0; i < recorded.size(); ++i) {
    if (rule.agree(recorded, emulated, i) || ++count > kShown) continue;
    text += fmt::format("\n  word {}: recorded {:08x} ({:.9g}), emulated {:08x} ({:.9g})", i,
                        recorded[i], number(recorded[i]), emulated[i], number(emulated[i]));
  }
  if (count == 0) return {};
  return fmt::format("{} of {} words are not {}:{}", count, recorded.size(), rule.text, text);
}

}  // namespace lazyrope
