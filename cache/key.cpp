#include "cache/key.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

#include "cache/error.h"
#include "cache/sha256.h"

namespace lazyrope {
namespace {

constexpr std::size_t kLongestPlainValue = 128;
constexpr std::size_t kLongestName = 64;
constexpr std::string_view kDigestPrefix = "sha256:";

bool is_lower_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

bool is_name_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '.';
}

bool is_field_name(std::string_view name) {
  return !name.empty() && name.size() <= kLongestName &&
         std::all_of(name.begin(), name.end(), is_name_character);
}

std::string hex_digest(std::string_view text) {
  return to_hex(sha256(std::as_bytes(std::span(text))));
}

// A plain value never begins with the digest prefix, so no short value can be mistaken for a long
// one. Only ASCII is plain, because the fields are stored as JSON, which cannot hold other bytes.
std::string summarize(std::string_view value) {
  const auto is_printable = [](char c) { return c >= ' ' && c <= '~'; };
  const bool plain = value.size() <= kLongestPlainValue && !value.starts_with(kDigestPrefix) &&
                     std::all_of(value.begin(), value.end(), is_printable);
  return plain ? std::string(value) : fmt::format("{}{}", kDigestPrefix, hex_digest(value));
}

// The length before each text makes the encoding unique: no two sets of fields give the same bytes.
std::string encode_fields(const KeyFields& fields) {
  std::string text;
  for (const auto& [name, value] : fields) {
    text += fmt::format("{}:{}{}:{}", name.size(), name, value.size(), value);
  }
  return text;
}

}  // namespace

Key::Key(KeyFields fields) : fields_(std::move(fields)), hex_(hex_digest(encode_fields(fields_))) {}

Key Key::from_fields(KeyFields fields) { return Key(std::move(fields)); }

Key Key::with(std::string_view name, std::string_view value) const {
  KeyFields fields = KeyBuilder().field(name, value).finish().fields();
  fields.insert(fields_.begin(), fields_.end());  // which leaves `name` as it is
  return Key(std::move(fields));
}

Key Key::without(const std::string& name) const {
  KeyFields fields = fields_;
  fields.erase(name);
  if (fields.empty()) throw CacheError("a cache key needs at least one field");
  return Key(std::move(fields));
}

KeyBuilder& KeyBuilder::field(std::string_view name, std::string_view value) {
  if (!is_field_name(name)) {
    throw CacheError(fmt::format(
        "cache key field '{}': a name has 1 to {} characters out of a-z, 0-9, '_' and '.'", name,
        kLongestName));
  }
  const auto [field, is_new] = fields_.try_emplace(std::string(name), summarize(value));
  if (!is_new) {
    throw CacheError(fmt::format("cache key field '{}' is given twice, as '{}' and then as '{}'",
                                 name, field->second, summarize(value)));
  }
  return *this;
}

Key KeyBuilder::finish() const {
  if (fields_.empty()) throw CacheError("a cache key needs at least one field");
  return Key::from_fields(fields_);
}

bool is_key_hex(std::string_view text) {
  return text.size() == 64 && std::all_of(text.begin(), text.end(), is_lower_hex);
}

}  // namespace lazyrope
