#pragma once

#include <optional>
#include <string>

#include "tests/isa/conformance_cases.h"

namespace lazyrope {

// The output of a conformance case on a GPU. The file tests/isa/recordings/NAME.rec has a few lines
// of text, then the bytes of the output.
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

// Throws std::runtime_error if the file cannot be written.
void write_recording(const ConformanceCase& test_case, const Recording& recording);

// Returns nullopt if there is no file. Throws std::runtime_error if the file is not a recording.
std::optional<Recording> read_recording(const ConformanceCase& test_case);

}  // namespace lazyrope
