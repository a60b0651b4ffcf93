#include "runtime/spec/config_json.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <fstream>
#include <system_error>

#include "codegen/error.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMaxExcerpt = 200;

// A word is a number or a literal such as true or NaN.
bool is_of_word(char c) {
  return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '+' || c == '-' || c == '.';
}

// Returns the length of the string that `text` begins with, including both quotes.
std::size_t string_length(std::string_view text) {
  for (std::size_t i = 1; i < text.size(); ++i) {
    if (text[i] == '"') return i + 1;
    if (text[i] == '\\') ++i;
  }
  return text.size();
}

std::size_t word_length(std::string_view text) {
  return static_cast<std::size_t>(std::ranges::find_if_not(text, is_of_word) - text.begin());
}

// Returns true for NaN and the infinities, and for numbers that are too large or too small for a
// double.
bool is_no_double(std::string_view word) {
  if (word == "NaN" || word == "Infinity" || word == "-Infinity") return true;
  double value = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), value);
  return error == std::errc::result_out_of_range && end == word.data() + word.size();
}

int nesting_of(char c) {
  if (c == '[' || c == '{') return 1;
  return c == ']' || c == '}' ? -1 : 0;
}

// Returns the text with each word that is no double as a string. The depth is checked here, before
// the parser builds a value that deep.
std::string standard_json(std::string_view text) {
  std::string result;
  result.reserve(text.size());
  int depth = 0;
  for (std::size_t i = 0; i < text.size();) {
    depth += nesting_of(text[i]);
    if (depth > kMaxConfigDepth)
      refuse_config(
          fmt::format("lists and objects nest more than {} deep at byte {}; that is not "
                      "the config of a model",
                      kMaxConfigDepth, i));
    const bool is_word = is_of_word(text[i]);
    const std::string_view rest = text.substr(i);
    const std::size_t length = text[i] == '"' ? string_length(rest)
                               : is_word      ? word_length(rest)
                                              : std::size_t{1};
    const std::string_view token = rest.substr(0, length);
    const bool is_quoted = is_word && is_no_double(token);
    result.append(is_quoted ? "\"" : "").append(token).append(is_quoted ? "\"" : "");
    i += length;
  }
  return result;
}

void check_size(std::size_t bytes) {
  if (bytes > kMaxConfigBytes)
    refuse_config(fmt::format("it has more than {} bytes; that is not the config of a model",
                              kMaxConfigBytes));
}

[[noreturn]] void refuse_file(const fs::path& file, int error) {
  throw SpecError(
      fmt::format("cannot read {}: {}", file.string(), std::generic_category().message(error)));
}

}  // namespace

[[noreturn]] void refuse_config(const std::string& why) { throw SpecError("config.json: " + why); }

std::string read_config_file(const fs::path& file) {
  std::error_code error;
  const fs::file_status status = fs::status(file, error);
  if (status.type() == fs::file_type::not_found) refuse_file(file, ENOENT);
  if (error) refuse_file(file, error.value());
  // To open a FIFO would wait for its writer.
  if (!fs::is_regular_file(status))
    throw SpecError(fmt::format("cannot read {}: it is not a regular file", file.string()));
  std::ifstream in(file, std::ios::binary);
  if (!in.is_open()) refuse_file(file, errno);
  std::string text(kMaxConfigBytes + 1, '\0');
  in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (in.bad()) refuse_file(file, EIO);
  text.resize(static_cast<std::size_t>(in.gcount()));
  check_size(text.size());
  return text;
}

Json parse_config(std::string_view text) {
  check_size(text.size());
  try {
    Json config = Json::parse(standard_json(text));
    if (config.is_object()) return config;
  } catch (const Json::exception& error) {
    const std::string what = error.what();  // "[json.exception.parse_error.101] parse error at ..."
    const std::size_t begin = what.find("] ");
    refuse_config("not a JSON object: " +
                  printable(begin == std::string::npos ? what : what.substr(begin + 2)));
  }
  refuse_config("not a JSON object");
}

std::string printable(std::string text) {
  std::ranges::replace_if(text, [](char c) { return c < ' ' || c > '~'; }, '?');
  if (text.size() <= kMaxExcerpt) return text;
  return fmt::format("{}... ({} characters)", text.substr(0, kMaxExcerpt), text.size());
}

std::string json_excerpt(const Json& value) {
  return printable(value.dump(-1, ' ', /*ensure_ascii=*/true));
}

bool is_set(const Json& config, const char* key) {
  return config.contains(key) && !config[key].is_null();
}

bool flag(const Json& config, const char* key) {
  return optional<bool>(config, key).value_or(false);
}

namespace config_json {

[[noreturn]] void refuse_missing(const char* key) {
  refuse_config(fmt::format("{} is missing", key));
}

[[noreturn]] void refuse_type(const char* key, const Json& value) {
  refuse_config(fmt::format("{} = {} has the wrong type", key, json_excerpt(value)));
}

}  // namespace config_json
}  // namespace lazyrope
