#pragma once

#include <map>
#include <string>
#include <string_view>

namespace lazyrope {

// Maps field names to short texts. A value of at most 128 printable ASCII characters is stored as
// it is. Any other value (longer, binary, or itself beginning with "sha256:") is stored as
// "sha256:" and its digest.
using KeyFields = std::map<std::string, std::string>;

// The key of a cache entry: the SHA-256 of a set of named fields, given in any order. The key holds
// the fields too, so that a miss can be explained by comparing them with those of a stored entry.
class Key {
 public:
  // Rebuilds a key from what `fields()` returned, in this process or an earlier one.
  static Key from_fields(KeyFields fields);

  // Returns 64 lower-case hex characters.
  const std::string& hex() const { return hex_; }
  const KeyFields& fields() const { return fields_; }

  // Returns the key that has `value` in the field `name`, which this key may have or not. Throws
  // CacheError as KeyBuilder::field does.
  Key with(std::string_view name, std::string_view value) const;
  // Returns the key without the field `name`. Throws CacheError if no field is left.
  Key without(const std::string& name) const;

 private:
  explicit Key(KeyFields fields);

  KeyFields fields_;
  std::string hex_;
};

// Builds a key: `KeyBuilder().field("arch", "sm_90a").field("source", text).finish()`.
class KeyBuilder {
 public:
  // Adds a field. `name` has 1 to 64 characters out of a-z, 0-9, '_' and '.'; `value` may have any
  // bytes. Throws CacheError for any other name, and for a name that was given before.
  KeyBuilder& field(std::string_view name, std::string_view value);

  // Returns the key. Throws CacheError when no field was given.
  Key finish() const;

 private:
  KeyFields fields_;
};

// Returns true if `text` has the form of `Key::hex()`.
bool is_key_hex(std::string_view text);

}  // namespace lazyrope
