#pragma once

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "cache/disk_store.h"

namespace lazyrope {

// Keeps the disk cache within its budget of bytes. A budget below what one process uses would make
// each process compile again what the last one removed, so the first such removal is a warning.
// Safe to use from several threads at once.
class CacheBudget {
 public:
  explicit CacheBudget(std::uint64_t max_bytes) : max_bytes_(max_bytes) {}

  // Notes that this process uses an entry, which has `bytes` bytes on disk.
  void note_use(const std::string& key, const std::string& kernel, std::uint64_t bytes);

  // Removes the least recently used entries beyond the budget, logs what is removed and returns it.
  Removed enforce(const DiskStore& store);

 private:
  struct Use {
    std::string kernel;
    std::uint64_t bytes;
  };

  void warn_of_used(const Removed& removed);

  const std::uint64_t max_bytes_;
  std::mutex mutex_;
  std::map<std::string, Use> used_;  // by key
  bool has_warned_ = false;
};

}  // namespace lazyrope
