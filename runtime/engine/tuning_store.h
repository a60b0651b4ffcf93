#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "runtime/base/fork.h"
#include "runtime/engine/kernel_cache.h"
#include "runtime/engine/tuning.h"

namespace lazyrope {

// Tuning records, in memory and on disk beside the kernels. Safe to use from several threads.
class TuningStore {
 public:
  explicit TuningStore(const KernelCache& cache) : cache_(cache) {}

  // Returns the record, or null if there is none. The disk is read once per key. A record that
  // cannot be used is logged.
  std::shared_ptr<const Tuning> find(const Key& key);

  // Locks the key before a measurement: waits up to ten minutes while another process or thread
  // holds it. A null that find() has remembered is dropped, so the next find() reads the disk
  // again.
  FileLock lock(const Key& key);

  // Stores a record in place of any other. A failed write is logged, and the record stays in
  // memory.
  void store(const Key& key, std::shared_ptr<const Tuning> tuning);

  // Makes find() return null for the key until store(), lock() or clear().
  void mark_missing(const Key& key);

  // Drops the records in memory, so the disk is read again.
  void clear();

 private:
  std::shared_ptr<const Tuning> load(const Key& key) const;

  struct Memory {
    std::mutex mutex;
    std::map<std::string, std::shared_ptr<const Tuning>> tunings;  // by key; null: no record
  };

  const KernelCache& cache_;
  PerProcess<Memory> memory_;
};

}  // namespace lazyrope
