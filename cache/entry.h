#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <span>
#include <string_view>
#include <vector>

#include "cache/key.h"

namespace lazyrope {

// What is stored under a key: bytes, and whatever must be known to use them without a further
// look.
struct Entry {
  nlohmann::json facts;
  std::vector<std::byte> payload;
};

struct DecodedEntry {
  Key key;
  Entry entry;
};

// The largest file that `encode_entry` makes and that is read back.
inline constexpr std::size_t kMaxEntryBytes = std::size_t{256} << 20;

// The file format, all integers little-endian:
//
//     0   8  "LAZYROPE"
//     8   4  format version, 1
//    12  32  SHA-256 of everything from offset 44 to the end
//    44   8  length of the key's fields
//    52   8  length of the facts
//    60   8  length of the payload
//    68      the key's fields as JSON, the facts as JSON, the payload; nothing after it
//
// The key itself is not written: it is the digest of its fields.
// Throws CacheError when the facts are not valid UTF-8 or the entry is larger than kMaxEntryBytes.
std::vector<std::byte> encode_entry(const Key& key, const Entry& entry);

// The entry in `file`, which must belong to the key `key_hex`. Throws CacheError with the reason,
// whatever the bytes are.
DecodedEntry decode_entry(std::vector<std::byte> file, std::string_view key_hex);

// The key alone, from the first bytes of a file; the rest is not looked at. Throws as above.
Key decode_key(std::span<const std::byte> start_of_file, std::string_view key_hex);

}  // namespace lazyrope
