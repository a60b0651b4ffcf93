#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "runtime/driver/tensor_map.h"
#include "tests/isa/inputs.h"
#include "tests/isa/kernels/params.h"
#include "tests/isa/rules.h"

namespace lazyrope {

// A device text of conformance kernels, tests/isa/kernels/NAME.cuh, and how it is launched.
struct ConformanceKernel {
  std::string name;
  int ctas = 1;
  int threads = 64;
  int shared_bytes = 0;
  std::string least_arch = "sm_80";
};

// A tensor that a row copies boxes of: in its input, from that word on.
struct CaseTensor {
  TensorMapSpec spec;  // without data
  std::size_t first_word = 0;
};

// One run of a text, and which wrappers of templates/isa it shows: what goes in, how much comes
// out, and when an emulated run agrees with a recorded one.
struct ConformanceCase {
  std::string name;  // of its recording
  std::string text;
  Case which = Case::kOnly;
  std::vector<std::string> wrappers;
  int count = 0;
  std::size_t output_words = 0;
  std::function<Words(Generator&)> input;
  Rule rule = same_bits();
  std::optional<CaseTensor> tensor = {};
};

const std::vector<ConformanceKernel>& conformance_kernels();
const std::vector<ConformanceCase>& conformance_cases();

// Of the row's name.
std::uint64_t seed_of(const ConformanceCase& test_case);
Words input_of(const ConformanceCase& test_case);

}  // namespace lazyrope
