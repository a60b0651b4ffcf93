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

// Text in columns as wide as their widest cell, below a line of headings.
class Table {
 public:
  explicit Table(std::vector<Column> columns);

  // As many cells as there are columns.
  void add(std::vector<std::string> cells) { lines_.push_back(std::move(cells)); }

  std::string text() const;

 private:
  std::size_t width(std::size_t column) const;

  std::vector<Align> aligns_;
  std::vector<std::vector<std::string>> lines_;  // the first one holds the headings
};

}  // namespace lazyrope
