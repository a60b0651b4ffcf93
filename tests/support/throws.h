#pragma once

#include <gtest/gtest.h>

#include <exception>
#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// Succeeds if each of `parts` occurs in `text`.
inline testing::AssertionResult says(std::string_view text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts)
    if (text.find(part) == std::string_view::npos)
      return testing::AssertionFailure() << "\"" << part << "\" is missing in: " << text;
  return testing::AssertionSuccess();
}

// Succeeds if `action` throws an Error whose text has each of `parts`.
template <class Error>
testing::AssertionResult throws(const auto& action, const std::vector<std::string>& parts) {
  try {
    action();
  } catch (const Error& error) {
    return says(error.what(), parts);
  } catch (const std::exception& error) {
    return testing::AssertionFailure() << "an error of another class: " << error.what();
  }
  return testing::AssertionFailure() << "no error";
}

}  // namespace lazyrope
