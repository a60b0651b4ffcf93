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

// A conformance kernel, tests/isa/kernels/NAME.cuh, and its launch. A kernel can serve several
// cases.
struct ConformanceKernel {
  std::string name;
  int ctas = 1;
  int threads = 64;
  int shared_bytes = 0;
  std::string least_arch = "sm_80";
};

// The tensor from which a case copies boxes. It is in the case's input, from word first_word on.
struct CaseTensor {
  TensorMapSpec spec;  // without data
  std::size_t first_word = 0;
};

// One run of a conformance kernel: the wrappers of templates/isa that it exercises, its input, the
// size of its output, and the rule by which an emulated output agrees with a recorded one.
struct ConformanceCase {
  std::string name;    // its recording is NAME.rec
  std::string kernel;  // the name of its ConformanceKernel
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

// Returns the seed of the case's input. It depends on the name alone.
std::uint64_t seed_of(const ConformanceCase& test_case);
Words input_of(const ConformanceCase& test_case);

}  // namespace lazyrope
