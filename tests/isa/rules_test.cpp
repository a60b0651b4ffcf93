// The rules accept and refuse the right words. Recordings are compared by these rules alone.
#include "tests/isa/rules.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>

#include "tests/isa/inputs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr float kLeastNormal = std::numeric_limits<float>::min();
constexpr std::uint32_t kNan = 0x7fc00000u;
constexpr std::uint32_t kOtherNan = 0xffffffffu;

std::uint32_t bits(float x) { return std::bit_cast<std::uint32_t>(x); }

bool agree(const Rule& rule, const Words& recorded, const Words& emulated) {
  return differences(rule, recorded, emulated).empty();
}
bool agree(const Rule& rule, std::uint32_t recorded, std::uint32_t emulated) {
  return agree(rule, Words{recorded}, Words{emulated});
}

TEST(SameBits, OneOtherBitIsADifference) {
  EXPECT_TRUE(agree(same_bits(), kNan, kNan));
  EXPECT_FALSE(agree(same_bits(), kNan, kNan + 1));
  EXPECT_FALSE(agree(same_bits(), bits(0.0f), bits(-0.0f)));
}

TEST(WithinUlps, MoreUlpsThanAllowedAreADifference) {
  const std::uint32_t one = bits(1.0f);
  EXPECT_TRUE(agree(within_ulps(2), one, one - 2));
  EXPECT_FALSE(agree(within_ulps(2), one, one + 3));
  EXPECT_FALSE(agree(within_ulps(2), one, bits(-1.0f)));
  EXPECT_TRUE(agree(within_ulps(1), bits(std::numeric_limits<float>::max()), bits(kInfinity)));
}

TEST(WithinUlps, ZeroIsOneUlpFromTheLeastNormalNumber) {
  EXPECT_TRUE(agree(within_ulps(1), bits(0.0f), bits(kLeastNormal)));
  EXPECT_TRUE(agree(within_ulps(1), bits(kLeastNormal), bits(0.0f)));
  EXPECT_FALSE(agree(within_ulps(1), bits(0.0f), bits(kLeastNormal) + 1));
  EXPECT_FALSE(agree(within_ulps(1), bits(0.0f), bits(kLeastNormal) - 1)) << "not flushed";
  EXPECT_FALSE(agree(within_ulps(1), bits(0.0f), bits(-0.0f)));
}

TEST(WithinUlps, AllNansAreAlike) {
  EXPECT_TRUE(agree(within_ulps(1), kNan, kOtherNan));
  EXPECT_FALSE(agree(within_ulps(1), kNan, bits(1.0f)));
  EXPECT_FALSE(agree(within_ulps(1), bits(kInfinity), 0x7f800001u));
}

TEST(WithinError, ErrorIsAbsoluteUpToOneAndRelativeAbove) {
  EXPECT_TRUE(agree(within_error(0x1p-20, true), bits(0.0f), bits(0x1p-20f)));
  EXPECT_FALSE(agree(within_error(0x1p-20, true), bits(0.0f), bits(0x1.2p-20f)));
  EXPECT_TRUE(agree(within_error(0x1p-20, true), bits(64.0f), bits(64.0f + 0x1p-15f)));
  EXPECT_FALSE(agree(within_error(0x1p-20, false), bits(64.0f), bits(64.0f + 0x1p-15f)));
  EXPECT_FALSE(agree(within_error(0x1p-20, true), bits(kInfinity), bits(-kInfinity)));
  EXPECT_FALSE(agree(within_error(0x1p-20, true), bits(kInfinity), bits(3e38f)));
}

TEST(Accumulated, ToleranceScalesWithTheMagnitudes) {
  const Rule rule = accumulated(16);
  EXPECT_TRUE(agree(rule, {bits(0.0f), bits(1024.0f)}, {bits(0x1p-9f), bits(1024.0f)}));
  EXPECT_FALSE(agree(rule, {bits(0.0f), bits(1.0f)}, {bits(0x1p-9f), bits(1.0f)}));
  EXPECT_FALSE(agree(rule, {bits(0.0f), bits(1.0f)}, {bits(0.0f), bits(1.001f)}));
  EXPECT_TRUE(agree(rule, {kNan, kNan}, {kOtherNan, kOtherNan}));
  EXPECT_FALSE(agree(rule, {bits(1.0f), bits(kInfinity)}, {kNan, bits(kInfinity)}));
}

TEST(Differences, TextHasTheFirstWordsAndTheCount) {
  const Words recorded(9, bits(1.0f));
  Words emulated(9, bits(2.0f));
  emulated[0] = recorded[0];
  EXPECT_TRUE(says(differences(same_bits(), recorded, emulated),
                   {"8 of 9 words are not the same bits",
                    "word 1: recorded 3f800000 (1), emulated 40000000 (2)", "word 5"}));
  EXPECT_TRUE(
      says(differences(same_bits(), Words(2), Words(3)), {"2 words are recorded, 3 emulated"}));
}

}  // namespace
}  // namespace lazyrope
