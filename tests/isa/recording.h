#pragma once

#include <optional>
#include <string>

#include "tests/isa/conformance_cases.h"

namespace lazyrope {

// What a GPU gave for a row of conformance_cases(): tests/isa/recordings/NAME.rec, a few lines of
// text and the output's bytes.
struct Recording {
  std::string name;
  std::string gpu;
  std::string driver;
  std::string compiler;
  std::string arch;
  std::string date;
  std::string seed;
  std::string input_sha256;
  Words output;
};

std::string recording_path(const ConformanceCase& test_case);
std::string sha256_of(const Words& words);

// std::runtime_error where it cannot be written.
void write_recording(const ConformanceCase& test_case, const Recording& recording);

// Nothing where there is no file; std::runtime_error where it is none.
std::optional<Recording> read_recording(const ConformanceCase& test_case);

}  // namespace lazyrope
