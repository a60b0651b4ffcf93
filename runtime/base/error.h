#pragma once

#include <stdexcept>
#include <string>
#include <vector>

namespace lazyrope {

// The parts of a CompileError. Every field may be empty; the error's text leaves out empty ones.
struct CompileFailure {
  std::string what_failed = {};           // one sentence
  std::string source = {};                // path of the kernel's source, or the program's name
  std::vector<std::string> options = {};  // as given to NVRTC
  std::string log = {};                   // NVRTC's log, or the paths where NVRTC was looked for
  std::string excerpt = {};               // numbered source lines that the log names
  std::string advice = {};                // advice to the user
};

// Thrown when a kernel could not be compiled, or there is no NVRTC to compile it with.
class CompileError : public std::runtime_error {
 public:
  explicit CompileError(CompileFailure failure);
  const CompileFailure& failure() const noexcept { return failure_; }

 private:
  CompileFailure failure_;
};

// Thrown when a kernel compiles but spills registers, which its config should not do.
class SpillError : public CompileError {
 public:
  using CompileError::CompileError;
};

// The value of DriverFailure::code when there is no driver that could return a CUresult.
inline constexpr int kNoUsableDriver = -1;

// The parts of a DriverError.
struct DriverFailure {
  std::string call = {};       // the driver's function, e.g. "cuLaunchKernel"
  int code = kNoUsableDriver;  // CUresult
  std::string name = {};       // e.g. "CUDA_ERROR_INVALID_VALUE"; empty for kNoUsableDriver
  std::string text = {};       // the driver's description of the code
  std::string advice = {};     // advice to the user
};

// Thrown when a call of the CUDA driver failed, or there is no usable driver.
class DriverError : public std::runtime_error {
 public:
  explicit DriverError(DriverFailure failure);
  const DriverFailure& failure() const noexcept { return failure_; }

 private:
  DriverFailure failure_;
};

}  // namespace lazyrope
