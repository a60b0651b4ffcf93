// CMakeLists.txt compiles this file, which uses fmt as lazyrope does, to learn whether fmt can
// be compiled once.
#include <fmt/chrono.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <ctime>
#include <string>
#include <vector>

int main() {
  const std::vector<int> numbers = {1, 2};
  fmt::print("{:.3f} {:>8} {} {:#x} {}\n", 1.5, "x", fmt::join(numbers, ", "), 17,
             std::string("s"));
  fmt::print(stderr, "{} {:%Y}\n", fmt::to_string(2.5), fmt::gmtime(std::time(nullptr)));
}
