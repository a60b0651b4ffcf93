#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>

namespace lazyrope {

// A rule that says whether a word of the emulator's output agrees with that of the GPU.
struct Rule {
  using Output = std::span<const std::uint32_t>;

  std::string text;  // "the same bits"
  std::function<bool(Output recorded, Output emulated, std::size_t i)> agree;
};

Rule same_bits();

// This rule is for fp32 results that the emulator rounds correctly and for which the PTX manual
// allows an error of `ulps` units in the last place. Subnormal results must be flushed to zero
// (".ftz"). All NaN are alike; zeros and infinities must have the same sign.
Rule within_ulps(int ulps);

// This rule accepts fp32 results within an absolute error. With `relative_above_one`, the error is
// relative for results larger than 1.
Rule within_error(double error, bool relative_above_one);

// This rule is for pairs of words: an element of a matrix product, and the same element of the
// product of the operands' magnitudes. The PTX manual promises sums of at least single precision,
// in any order and rounding. Each of the `terms` additions on either side may therefore be wrong by
// 2^-23 of a partial sum, and the magnitudes bound the partial sums.
Rule accumulated(int terms);

// Describes the first words that do not agree, and says how many there are. Empty if all agree.
std::string differences(const Rule& rule, Rule::Output recorded, Rule::Output emulated);

}  // namespace lazyrope
