#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "runtime/base/fork.h"

namespace lazyrope {

// The field of a kernel's key that names the compiler. Entries of one kernel by several compilers
// differ in it alone. Entries of earlier versions do not have it.
inline constexpr char kCompilerField[] = "compiler";

// Finds the entries of a directory that differ from a key in their compiler alone. It reads the
// start of every entry once, and again when the directory has changed. Safe to use from several
// threads and in a child of fork().
class EntryIndex {
 public:
  explicit EntryIndex(const DiskStore& store) : store_(store) {}

  // Returns the keys of all entries of the kernel `base`, a key without kCompilerField, sorted. The
  // entries may have gone meanwhile.
  std::vector<Key> find(const Key& base) const;

 private:
  using Time = std::filesystem::file_time_type;
  struct Index {
    std::mutex mutex;
    std::map<std::string, std::vector<Key>> keys;  // by the key without the compiler
    Time built = Time::min();
  };

  bool is_current(const Index& index) const;
  void build(Index& index) const;

  const DiskStore& store_;
  mutable PerProcess<Index> index_;
};

}  // namespace lazyrope
