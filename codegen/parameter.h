#pragma once

#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <string>

namespace lazyrope {

// A parameter of a row of a registry (a RoPE variant or a mask).
template <class Value>
struct Parameter {
  std::string name;
  std::string meaning;
  Value min;  // allowed: min <= value <= max
  Value max = std::numeric_limits<Value>::max();
  std::optional<Value> default_value = {};  // without a default the parameter is required
};

template <class Value>
using Parameters = std::map<std::string, Value, std::less<>>;  // values by name

// Returns the given value, or else the default. `given` must have passed validate_parameters().
template <class Value>
Value value_of(const Parameter<Value>& parameter, const Parameters<Value>& given) {
  const auto it = given.find(parameter.name);
  return it == given.end() ? parameter.default_value.value() : it->second;
}

}  // namespace lazyrope
