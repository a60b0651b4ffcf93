#pragma once

#include <cstddef>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>

namespace lazyrope {

using Json = nlohmann::json;

inline constexpr std::size_t kMaxConfigBytes = std::size_t{8} << 20;
inline constexpr int kMaxConfigDepth = 64;

// Throws SpecError with the text "config.json: " and `why`.
[[noreturn]] void refuse_config(const std::string& why);

// Returns the text of a config.json. Throws SpecError if the file is not a regular file, cannot be
// read, or has more than kMaxConfigBytes.
std::string read_config_file(const std::filesystem::path& file);

// Returns the object that `text` holds. Python's json module also writes NaN, Infinity and numbers
// that no double can hold. They become strings, so they do no harm in a key that is not read, and
// have the wrong type in a key that is. Throws SpecError if `text` is no JSON object, has more than
// kMaxConfigBytes, or nests lists and objects more than kMaxConfigDepth deep.
Json parse_config(std::string_view text);

// Returns the text in printable ASCII, shortened if it is long. Errors reach terminals and Python,
// so a config must not choose their bytes or their length.
std::string printable(std::string text);

// Returns the value as JSON in ASCII, shortened if it is long, for the text of an error.
std::string json_excerpt(const Json& value);

// Returns true if the key is there and its value is not null.
bool is_set(const Json& config, const char* key);

namespace config_json {

// Returns true if the value is a T as it is: no number is rounded or converted.
template <class T>
bool holds(const Json& value) {
  if constexpr (std::is_same_v<T, int>)
    return value.is_number_integer() && value == Json(value.get<int>());
  if constexpr (std::is_same_v<T, double>) return value.is_number();
  if constexpr (std::is_same_v<T, bool>) return value.is_boolean();
  return value.is_string();
}

[[noreturn]] void refuse_missing(const char* key);
[[noreturn]] void refuse_type(const char* key, const Json& value);

}  // namespace config_json

// Returns the key's value. Throws SpecError if the key is absent or null, or the value is not a T.
template <class T>
T required(const Json& config, const char* key) {
  if (!is_set(config, key)) config_json::refuse_missing(key);
  const Json& value = config[key];
  if (!config_json::holds<T>(value)) config_json::refuse_type(key, value);
  return value.get<T>();
}

// Returns nothing if the key is absent or null.
template <class T>
std::optional<T> optional(const Json& config, const char* key) {
  return is_set(config, key) ? std::optional(required<T>(config, key)) : std::nullopt;
}

// Returns false if the key is absent or null, as Python treats null.
bool flag(const Json& config, const char* key);

}  // namespace lazyrope
