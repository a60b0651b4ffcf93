#include "runtime/base/table.h"

#include <fmt/format.h>

#include <algorithm>

namespace lazyrope {

Table::Table(std::vector<Column> columns) {
  std::vector<std::string>& headings = lines_.emplace_back();
  for (Column& column : columns) {
    headings.push_back(std::move(column.heading));
    aligns_.push_back(column.align);
  }
}

std::size_t Table::width(std::size_t column) const {
  std::size_t widest = 0;
  for (const std::vector<std::string>& cells : lines_)
    widest = std::max(widest, cells.at(column).size());
  return widest;
}

std::string Table::text() const {
  std::vector<std::string> lines(lines_.size());
  for (std::size_t column = 0; column < aligns_.size(); ++column) {
    const std::size_t wide = width(column);
    for (std::size_t i = 0; i < lines.size(); ++i) {
      const std::string& cell = lines_[i].at(column);
      lines[i] += aligns_[column] == Align::kRight ? fmt::format("{:>{}}  ", cell, wide)
                                                   : fmt::format("{:<{}}  ", cell, wide);
    }
  }
  std::string text;
  for (std::string& line : lines) {
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

}  // namespace lazyrope
