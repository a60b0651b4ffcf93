#include "runtime/base/error.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

namespace lazyrope {
namespace {

void append_part(std::string& text, const char* label, const std::string& part) {
  if (!part.empty()) text += fmt::format("\n{}{}", label, part);
}

std::string describe(const CompileFailure& failure) {
  std::string text = failure.what_failed;
  append_part(text, "", failure.advice);
  append_part(text, "source: ", failure.source);
  append_part(text, "options: ", fmt::format("{}", fmt::join(failure.options, " ")));
  append_part(text, "log:\n", failure.log);
  append_part(text, "lines:\n", failure.excerpt);
  return text;
}

std::string describe(const DriverFailure& failure) {
  std::string text = failure.text;
  if (failure.code != kNoUsableDriver) {
    text = fmt::format("{} failed: {} ({}): {}", failure.call, failure.name, failure.code,
                       failure.text);
  }
  append_part(text, "", failure.advice);
  return text;
}

}  // namespace

CompileError::CompileError(CompileFailure failure)
    : std::runtime_error(describe(failure)), failure_(std::move(failure)) {}

DriverError::DriverError(DriverFailure failure)
    : std::runtime_error(describe(failure)), failure_(std::move(failure)) {}

}  // namespace lazyrope
