#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/key.h"

namespace lazyrope {

// The content of a cache file: the compiled bytes, and the facts that a caller needs to use them
// without examining them.
struct Entry {
  std::string facts;  // JSON, or empty
  std::vector<std::byte> payload;
};

// An entry together with the key that its file names.
struct DecodedEntry {
  Key key;
  Entry entry;
};

// The size limit of a file, for encode_entry and for reading.
inline constexpr std::size_t kMaxEntryBytes = std::size_t{256} << 20;

// Encodes an entry as a file. All integers are little-endian:
//
//     0   8  "LAZYROPE"
//     8   4  format version, 1
//    12  32  SHA-256 of everything from offset 44 to the end
//    44   8  length of the key's fields
//    52   8  length of the facts
//    60   8  length of the payload
//    68      the key's fields as JSON, the facts as JSON, the payload; nothing after it
//
// The key itself is not written: it is the digest of its fields. Throws CacheError when the facts
// are not JSON or the entry is larger than kMaxEntryBytes.
std::vector<std::byte> encode_entry(const Key& key, const Entry& entry);

// Decodes a file, which must belong to the key `key_hex`. Throws CacheError with the reason for any
// other bytes.
DecodedEntry decode_entry(std::vector<std::byte> file, std::string_view key_hex);

// Decodes the key alone, from the first bytes of a file, without verifying the rest. Throws
// CacheError.
Key decode_key(std::span<const std::byte> start_of_file, std::string_view key_hex);

// Decodes the key and the facts, from the first bytes of a file, without the payload. The facts are
// not verified, and empty if they are not whole. Throws CacheError.
DecodedEntry decode_start(std::span<const std::byte> start_of_file, std::string_view key_hex);

}  // namespace lazyrope
