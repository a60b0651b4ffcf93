#pragma once

#include <string>
#include <vector>

namespace lazyrope {

enum class Align { kLeft, kRight };

// Text in columns as wide as their widest cell, below a line of headings.
class Table {
 public:
  struct Column {
    std::string heading;
    Align align = Align::kLeft;
  };

  explicit Table(std::vector<Column> columns);

  // As many cells as there are columns.
  void add(std::vector<std::string> cells) { rows_.push_back(std::move(cells)); }

  std::string text() const;

 private:
  std::string line(const std::vector<std::string>& cells) const;

  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
  std::vector<std::size_t> widths_;
};

}  // namespace lazyrope
