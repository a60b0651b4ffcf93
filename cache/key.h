#pragma once

#include <map>
#include <string>
#include <string_view>

namespace lazyrope {

// Field name -> short text. A value of at most 128 printable ASCII characters stands for itself;
// any other (longer, binary, or itself beginning with "sha256:") is "sha256:" and its digest.
using KeyFields = std::map<std::string, std::string>;

// What an entry is stored under: the SHA-256 of a set of named fields. The order in which fields
// were given does not matter. The fields are kept, so that a miss can be explained by comparing
// them with those of a stored entry.
class Key {
 public:
  // Rebuilds a key from what `fields()` returned, in this process or an earlier one.
  static Key from_fields(KeyFields fields);

  // 64 lower-case hex characters.
  const std::string& hex() const { return hex_; }
  const KeyFields& fields() const { return fields_; }

 private:
  explicit Key(KeyFields fields);

  KeyFields fields_;
  std::string hex_;
};

// `KeyBuilder().field("arch", "sm_90a").field("source", text).finish()`.
class KeyBuilder {
 public:
  // `name`: 1 to 64 of a-z, 0-9, '_' and '.'; `value`: any bytes. Throws CacheError for another
  // name, and for a name that was given before.
  KeyBuilder& field(std::string_view name, std::string_view value);

  // Throws CacheError when no field was given.
  Key finish() const;

 private:
  KeyFields fields_;
};

// Whether `text` has the form of `Key::hex()`.
bool is_key_hex(std::string_view text);

}  // namespace lazyrope
