#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "cache/entry.h"
#include "cache/given_file.h"
#include "cache/key.h"
#include "cache/manifest.h"
#include "cache/signature.h"

// A pack is one file with a set of cache entries, to send them to other machines. All integers are
// little-endian:
//
//     0   8  "LAZYPACK"
//     8   4  format version, 1
//    12  32  Ed25519 public key of the signer; zeros in an unsigned pack
//    44  64  its signature of the manifest; zeros in an unsigned pack
//   108  32  SHA-256 of the manifest
//   140   8  length of the manifest
//   148      the manifest (cache/manifest.h), then the entries in its order, each in the format of
//            its file in a cache (cache/entry.h); nothing after them
//
// The manifest has the size and the SHA-256 of each entry, so the signature covers every byte of
// the entries. The file has neither times nor paths: the same entries and the same secret key give
// the same bytes.
namespace lazyrope {

// Makes a pack.
class PackWriter {
 public:
  // Adds an entry, in any order. An entry of the same key is replaced. Throws CacheError as
  // encode_entry() does.
  void add(const Key& key, const Entry& entry);

  // Returns the bytes of the pack, signed if there is a key. The entries are then gone. Throws
  // CacheError.
  std::vector<std::byte> finish(const std::optional<SecretKey>& signer);

 private:
  std::map<std::string, std::vector<std::byte>> files_;  // by key
};

// A pack that is open for reading. Several threads may read at once. The class needs no trust in
// the file's owner: whatever happens to the file after open(), only entries that the verified
// manifest describes are returned.
class Pack {
 public:
  // Reads and verifies the header, the manifest and the signature, and the size of the file. With
  // `trusted` keys, the pack must be signed by one of them. Throws CacheError with the reason.
  static Pack open(const std::filesystem::path& path, const std::vector<PublicKey>& trusted = {});

  const std::filesystem::path& path() const { return file_.path(); }
  // Returns the size of the file.
  std::uint64_t size_bytes() const { return file_.size(); }
  // Returns the entries, sorted by key.
  const std::vector<ManifestEntry>& manifest() const { return manifest_; }
  // Returns the key whose owner signed the pack. It deserves trust only if open() was given it.
  const std::optional<PublicKey>& signer() const { return signer_; }

  // Returns the entry `index` of the manifest. Throws CacheError if its bytes are not those that
  // the manifest describes, or not an entry of its key.
  DecodedEntry read(std::size_t index) const;

  // Reads and verifies the entry of `key`, as DiskStore::load does. Never throws.
  LoadResult load(const Key& key) const;

  // Reads and verifies all entries. Throws CacheError for the first bad one.
  void check_entries() const;

 private:
  Pack(GivenFile file, const std::vector<PublicKey>& trusted);

  GivenFile file_;
  std::optional<PublicKey> signer_;
  std::vector<ManifestEntry> manifest_;
  std::vector<std::uint64_t> offsets_;  // the places of the entries in the file
};

// Returns the keys that a file names: a pack, or a manifest as keys_in_manifest() reads it. Throws
// CacheError.
KeySet keys_in_file(const std::filesystem::path& path);

}  // namespace lazyrope
