#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/entry.h"
#include "cache/file_lock.h"
#include "cache/key.h"

namespace lazyrope {

struct LoadResult {
  std::optional<Entry> entry;
  // Why there is no entry: "absent", or what is wrong with the file. Empty on a hit.
  std::string miss_reason;
  // A miss that is worth a warning: the file cannot be read, or must not be used.
  bool refused = false;
};

struct StoreResult {
  bool stored = false;
  // Why it was not stored; empty when it was.
  std::string reason;
};

struct ListedEntry {
  std::string key;
  std::uint64_t bytes = 0;
  std::chrono::system_clock::time_point last_use;
  KeyFields fields;
  nlohmann::json facts;
  // Why the entry cannot be used; then there are no fields and no facts.
  std::string error;
};

struct Removed {
  std::size_t entries = 0;
  std::uint64_t bytes = 0;
};

struct Nearest {
  std::string key;
  KeyFields fields;
  // Names of the fields that have another value in one of the two keys, or are missing in one.
  std::vector<std::string> differing;
};

// Entries on disk, one file `<root>/<key>.lzr` each. Any number of threads and processes may use
// one root at once: a file is published whole or not at all, and is verified when it is read.
//
// Only files that nobody but this user and root can have written are trusted. `load`, `store`,
// `lock` and `nearest` never throw for anything that is wrong with the disk. The other functions
// throw CacheError; they touch only regular files in the root that are named as this store names
// them.
class DiskStore {
 public:
  // Touches nothing: directories are made when they are first needed. A store with an empty root
  // holds nothing.
  explicit DiskStore(std::filesystem::path root);

  const std::filesystem::path& root() const { return root_; }

  // A hit also makes the entry the most recently used one.
  LoadResult load(const Key& key) const;

  // Replaces what is there, good or bad.
  StoreResult store(const Key& key, const Entry& entry) const;

  // Makes the root where it is missing. CacheError when nothing could be stored there.
  void check_writable() const;

  // For compiling once: on a miss take the lock, load again, and only then compile and store.
  FileLock lock(const Key& key, std::chrono::milliseconds timeout,
                const std::function<void()>& on_pause = {}) const;

  // The stored entry whose key differs from `key` in the fewest fields, of those the most recently
  // used one; nullopt when there is none. An entry of `key` itself is left out.
  std::optional<Nearest> nearest(const Key& key) const;

  // Every entry, the most recently used first. Reads and verifies all of them.
  std::vector<ListedEntry> list() const;

  // How many entries there are; none is read.
  std::size_t count() const;

  // The size of all entries.
  std::uint64_t size_bytes() const;

  // Removes everything, also the temporary file of a writer at work, whose `store` then fails.
  Removed clear() const;

  // Removes entries, the least recently used first, until at most `max_bytes` are left; and what
  // killed processes left behind: temporary files older than an hour, and locks.
  Removed prune(std::uint64_t max_bytes) const;

 private:
  std::filesystem::path path_of(std::string_view key_hex, const char* extension) const;

  std::filesystem::path root_;
};

}  // namespace lazyrope
