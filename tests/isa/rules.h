#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace lazyrope {

// When what the emulator gives agrees with what the hardware gave.
struct Rule {
  using Output = std::span<const std::uint32_t>;

  std::string text;  // "the same bits"
  std::function<bool(Output recorded, Output emulated, std::size_t i)> agree;
};

Rule same_bits();

// fp32 results that round correctly in the emulator, and which the PTX manual puts within so many
// units in the last place; subnormal results count as zero (".ftz"). All NaN are alike; zeros and
// infinities have the same sign.
Rule within_ulps(int ulps);

// fp32 results within an absolute error, or a relative one where they are larger than 1.
Rule within_error(double error, bool relative_above_one);

// Pairs of a result of a matrix product and the same product of magnitudes. The PTX manual promises
// sums of at least single precision, in any order and rounding: each of the `terms` additions on
// either side may be wrong by 2^-23 of a partial sum, which the magnitudes bound.
Rule accumulated(int terms);

// Describes the first places where they do not agree, and how many there are; empty: none.
std::string differences(const Rule& rule, Rule::Output recorded, Rule::Output emulated);

}  // namespace lazyrope
