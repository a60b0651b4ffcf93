#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace lazyrope {

enum class Align { kLeft, kRight };

struct Column {
  std::string heading;
  Align align = Align::kLeft;
};

// A text table. Each column is as wide as its widest cell, and the first line holds the headings.
// It is not thread safe.
class Table {
 public:
  explicit Table(std::vector<Column> columns);

  // Adds a row, which must have one cell per column.
  void add(std::vector<std::string> cells) { lines_.push_back(std::move(cells)); }

  // Returns the lines, each with a line end.
  std::string text() const;

 private:
  std::size_t width(std::size_t column) const;

  std::vector<Align> aligns_;
  std::vector<std::vector<std::string>> lines_;  // the first one holds the headings
};

}  // namespace lazyrope
