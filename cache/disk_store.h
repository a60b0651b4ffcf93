#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/entry.h"
#include "cache/file_lock.h"
#include "cache/file_trust.h"
#include "cache/key.h"
#include "cache/manifest.h"

namespace lazyrope {

// The outcome of DiskStore::load.
struct LoadResult {
  std::optional<Entry> entry;
  // The reason for a miss: "absent", or what is wrong with the file. It is empty on a hit.
  std::string miss_reason = {};
  // True for a miss that deserves a warning: the file cannot be read, or must not be used.
  bool refused = false;
  // The size of the entry's file on a hit.
  std::uint64_t bytes = 0;
};

// The outcome of DiskStore::store.
struct StoreResult {
  bool stored = false;
  // The reason why the entry was not stored. It is empty when it was.
  std::string reason = {};
  // The size of the entry's file, if it was stored.
  std::uint64_t bytes = 0;
};

// An entry as DiskStore::list shows it.
struct ListedEntry {
  std::string key;
  std::uint64_t bytes = 0;
  std::chrono::system_clock::time_point last_use;
  KeyFields fields;
  std::string facts;  // JSON, or empty
  // The reason why the entry cannot be used; then there are no fields and no facts.
  std::string error;
};

// The entries that clear(), prune() or remove_irregular() removed.
struct Removed {
  std::vector<std::string> keys;
  std::uint64_t bytes = 0;
  // The bytes by which entries that prune() must keep exceed its limit.
  std::uint64_t excess_bytes = 0;
  // Folders that have the name of an entry, a temporary file or a lock, and are not empty.
  std::vector<std::string> remaining_folders;

  std::size_t entries() const { return keys.size(); }
};

// The limits of DiskStore::prune, and the entries that it leaves.
struct PruneLimits {
  std::uint64_t max_bytes = std::numeric_limits<std::uint64_t>::max();
  // Entries that were last used before this time are removed.
  std::chrono::system_clock::time_point oldest_use = std::chrono::system_clock::time_point::min();
  KeySet keep = {};  // these entries stay, as those of pins do (cache/pins.h)
};

// The stored entry that is most like a key, to explain a miss.
struct Nearest {
  std::string key;
  KeyFields fields;  // those of its key, and the facts that were asked for
  // The fields and facts whose values differ, or that only one of the two has.
  std::vector<std::string> differing;
};

// Entries on disk, one file `<root>/<key>.lzr` each. Any number of threads and processes may use
// one root at once: a file is published whole or not at all, and is verified when it is read.
//
// The store trusts only files that belong to this user, to root or to an owner in its FileTrust,
// and that no one else may write. `load`, `store`, `lock` and `nearest` never throw because of the
// disk. The other functions throw CacheError, and ignore files of other names in the root.
class DiskStore {
 public:
  // Touches nothing on disk: directories are made when they are first needed. A store with an empty
  // root stores nothing. Tests replace flock().
  explicit DiskStore(std::filesystem::path root, FileTrust trust = {},
                     FlockFunction flock_function = &::flock);

  const std::filesystem::path& root() const { return root_; }
  const FileTrust& trust() const { return trust_; }

  // Reads and verifies the entry of `key`. A hit also makes it the most recently used entry.
  LoadResult load(const Key& key) const;
  // Does the same, and leaves the time of last use as it is.
  LoadResult read(const Key& key) const;

  // Returns the keys of all entries whose start can be read, the most recently used first. The
  // entries are not verified.
  std::vector<Key> keys() const;

  // Writes the entry of `key`, in place of any that is there, good or bad.
  StoreResult store(const Key& key, const Entry& entry) const;

  // Makes the root if it is missing. Throws CacheError when nothing could be stored there.
  void check_writable() const;

  // Locks `key`, so that one process compiles it and the others wait. On a miss the caller takes
  // the lock, loads again, and only then compiles and stores. See FileLock::acquire.
  FileLock lock(const Key& key, std::chrono::milliseconds timeout,
                const OnPause& on_pause = {}) const;

  // Returns the entry whose key differs from `key` in the fewest fields, the most recently used one
  // among equals. It skips the entry of `key` itself, and returns nullopt when there is no other.
  // Facts of the wanted entry are compared like fields, with the facts of the same names that
  // entries have.
  std::optional<Nearest> nearest(const Key& key, const KeyFields& facts = {}) const;

  // Lists all entries, the most recently used first. Reads and verifies every one. A link that is
  // not followed, a folder, a FIFO or a socket with the name of an entry is listed as a bad one.
  std::vector<ListedEntry> list() const;

  // Counts the entries without reading them.
  std::size_t count() const;

  // Returns the summed size of all entries. A link counts nothing.
  std::uint64_t size_bytes() const;

  // Removes all entries, all temporary files, the lock files that no process holds, and what
  // remove_irregular() removes. A `store` that is writing its temporary file then fails.
  Removed clear() const;

  // Removes entries that were last used too long ago, and then the least recently used ones until
  // at most `max_bytes` are left. Entries of pins stay, even if they exceed the limit. Also removes
  // leftovers of killed processes: lock files, and temporary files and claims whose date is more
  // than an hour from now, in the past or in the future. Leaves whatever is no regular file. Throws
  // CacheError, and removes no entry, if a pin cannot be read.
  Removed prune(const PruneLimits& limits) const;
  Removed prune(std::uint64_t max_bytes) const;

  // Removes what has the name of an entry, a temporary file or a lock and is no regular file:
  // FIFOs, sockets, empty folders, and symbolic links, but never their targets. Links stay if this
  // store follows links. The engine does not call this, because a link may be the user's own.
  Removed remove_irregular() const;

 private:
  std::filesystem::path path_of(std::string_view key_hex, const char* extension) const;

  // Throws CacheError, and removes the file, if load() would refuse it.
  void check_stored(const std::filesystem::path& path) const;

  std::filesystem::path root_;
  FileTrust trust_;
  FlockFunction flock_;
};

}  // namespace lazyrope
