#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "cache/disk_store.h"
#include "runtime/engine/tuning.h"

namespace lazyrope {

// Tuning records, on disk beside the kernels and in memory. Safe to use from several threads.
class TuningStore {
 public:
  explicit TuningStore(DiskStore disk) : disk_(std::move(disk)) {}

  // Null where there is none. The disk is asked once; a record that cannot be used is logged.
  std::shared_ptr<const Tuning> find(const Key& key);

  // For who is about to measure: waits while another process or thread does, up to ten minutes.
  // find() then asks the disk anew where it had found nothing.
  FileLock lock(const Key& key);

  // Replaces what there is. A record that cannot be written is kept in memory, and that is logged.
  void store(const Key& key, std::shared_ptr<const Tuning> tuning);

  // For this process there is no such record, until one is kept.
  void dismiss(const Key& key);

  // The disk is asked anew.
  void clear();

 private:
  std::shared_ptr<const Tuning> load(const Key& key) const;

  DiskStore disk_;
  std::mutex mutex_;
  std::map<std::string, std::shared_ptr<const Tuning>> memory_;  // by key; null: there is none
};

}  // namespace lazyrope
