#include "codegen/nearest_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <numeric>
#include <tuple>
#include <utility>

namespace lazyrope {
namespace {

std::string lower_case(std::string_view text) {
  std::string result(text);
  for (char& c : result)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return result;
}

std::string digits_of(std::string_view text) {
  std::string digits;
  std::ranges::copy_if(text, std::back_inserter(digits),
                       [](char c) { return c >= '0' && c <= '9'; });
  return digits;
}

// sm_75 is no misspelling of sm_87, and gemma3 none of gemma2.
bool has_other_digits(std::string_view a, std::string_view b) {
  const std::string first = digits_of(a), second = digits_of(b);
  return !first.starts_with(second) && !second.starts_with(first);
}

// Returns the number of characters that must be inserted, removed, replaced or swapped with their
// neighbour to turn `a` into `b`: the optimal string alignment distance.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before_last, last, row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    before_last = std::exchange(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1])
        row[j] = std::min(row[j], before_last[j - 2] + 1);
    }
  }
  return row.back();
}

}  // namespace

std::string nearest_name(std::string_view given, const std::vector<std::string>& names) {
  // A long text is no misspelling of a name, and its distance would take long to compute.
  constexpr std::size_t kLongest = 64;
  if (given.size() > kLongest) return "";
  const std::string wanted = lower_case(given);
  std::tuple best(std::max<std::size_t>(1, given.size() / 3) + 1, false);
  const std::string* nearest = nullptr;
  for (const std::string& name : names) {
    const std::string known = lower_case(name);
    const std::tuple rank(edit_distance(wanted, known), !known.starts_with(wanted));
    if (rank >= best || has_other_digits(wanted, known)) continue;
    best = rank;
    nearest = &name;
  }
  return nearest == nullptr ? "" : *nearest;
}

std::string did_you_mean(std::string_view given, const std::vector<std::string>& names) {
  const std::string name = nearest_name(given, names);
  return name.empty() ? "" : fmt::format(" (did you mean {}?)", name);
}

}  // namespace lazyrope
