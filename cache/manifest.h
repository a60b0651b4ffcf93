#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace lazyrope {

// The keys of a set of entries, as Key::hex() writes them.
using KeySet = std::set<std::string>;

// One entry of a pack.
struct ManifestEntry {
  std::string key;
  std::uint64_t bytes = 0;  // the size of the entry's file
  std::string sha256;       // the digest of the entry's file, in hex

  bool operator==(const ManifestEntry&) const = default;
};

// The size limit of a manifest: some hundred thousand entries.
inline constexpr std::size_t kMaxManifestBytes = std::size_t{32} << 20;

// Writes the manifest of a pack, whose entries must be sorted by key:
//
//     {"entries":[{"bytes":1234,"key":"<hex>","sha256":"<hex>"},...],"format":"lazyrope pack 1"}
//
// The same entries give the same text. It names its format, so its signature is good for no other
// kind of text. Throws CacheError if the text is larger than kMaxManifestBytes.
std::string encode_manifest(const std::vector<ManifestEntry>& entries);

// Reads a manifest that encode_manifest() wrote. Throws CacheError for any other text.
std::vector<ManifestEntry> decode_manifest(std::string_view text);

// Returns the keys that any JSON object names in its list "entries": [{"key": "<hex>"}, ...]. The
// manifest of a pack is such an object, and so is what `lazyrope cache list --json` prints. Other
// members are ignored. Throws CacheError for other texts.
KeySet keys_in_manifest(std::string_view text);

// Writes an object that keys_in_manifest() reads.
std::string manifest_of(const KeySet& keys);

}  // namespace lazyrope
