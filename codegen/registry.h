#pragma once

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "codegen/error.h"
#include "codegen/nearest_name.h"
#include "codegen/parameter.h"
#include "codegen/versions.h"

namespace lazyrope {

// A table of rows with unique names, to which rows can be added at run time. It is safe to use from
// several threads.
template <class Row>
class Registry {
 public:
  // `what` is what error messages call a row.
  Registry(std::string what, std::vector<Row> rows)
      : what_(std::move(what)), rows_(std::move(rows)) {}

  std::vector<Row> rows() const { return rows_.latest(); }

  // Returns the row with this name. Throws SpecError, which lists the known names, if there is
  // none.
  Row find(std::string_view name) const {
    std::vector<std::string> names;
    for (const Row& row : rows_.latest()) {
      if (row.name == name) return row;
      names.push_back(row.name);
    }
    throw SpecError(fmt::format("{} \"{}\" is unknown{}; there are: {}", what_, name,
                                did_you_mean(name, names), fmt::join(names, ", ")));
  }

  // Throws SpecError if the name is taken.
  void add(const Row& added) {
    rows_.change([&](std::vector<Row>& rows) {
      for (const Row& row : rows)
        if (row.name == added.name)
          throw SpecError(
              fmt::format("{} \"{}\" exists already; choose another name", what_, added.name));
      rows.push_back(added);
    });
  }

 private:
  std::string what_;
  Versions<std::vector<Row>> rows_;
};

// Throws SpecError, which names the parameter of `row` that is missing, out of range or unknown.
template <class Row, class Value>
void validate_parameters(std::string_view what, const Row& row, const Parameters<Value>& given) {
  for (const Parameter<Value>& parameter : row.parameters) {
    const auto it = given.find(parameter.name);
    if (it == given.end() && parameter.default_value) continue;
    if (it == given.end())
      throw SpecError(fmt::format("{} \"{}\" needs {} ({})", what, row.name, parameter.name,
                                  parameter.meaning));
    if (!(it->second >= parameter.min && it->second <= parameter.max))
      throw SpecError(fmt::format("{} \"{}\": {} = {}, allowed are {} to {}", what, row.name,
                                  parameter.name, it->second, parameter.min, parameter.max));
  }
  std::vector<std::string> names;
  names.reserve(row.parameters.size());
  for (const Parameter<Value>& parameter : row.parameters) names.push_back(parameter.name);
  for (const auto& [name, value] : given)
    if (std::ranges::find(names, name) == names.end())
      throw SpecError(fmt::format("{} \"{}\" has no parameter {} (given {}){}", what, row.name,
                                  name, value, did_you_mean(name, names)));
}

}  // namespace lazyrope
