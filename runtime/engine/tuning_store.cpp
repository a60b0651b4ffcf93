#include "runtime/engine/tuning_store.h"

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "cache/error.h"
#include "runtime/base/interruption.h"
#include "runtime/base/log.h"
#include "runtime/engine/key_lock.h"

namespace lazyrope {

std::shared_ptr<const Tuning> TuningStore::find(const Key& key) {
  auto& [mutex, tunings] = memory_.get();
  const std::lock_guard lock(mutex);
  const auto [entry, is_new] = tunings.try_emplace(key.hex());
  if (is_new) entry->second = load(key);
  return entry->second;
}

std::shared_ptr<const Tuning> TuningStore::load(const Key& key) const {
  const LoadResult loaded = cache_.load(key);
  try {
    if (loaded.entry)
      return std::make_shared<Tuning>(tuning_of(nlohmann::json::parse(
          loaded.entry->facts, /*callback=*/nullptr, /*allow_exceptions=*/false)));
    if (loaded.refused) throw CacheError(loaded.miss_reason);
  } catch (const CacheError& error) {
    log_message(LogLevel::kWarning, "the tuning record {} is not used: {}; tune again", key.hex(),
                error.what());
  }
  return nullptr;
}

FileLock TuningStore::lock(const Key& key) {
  constexpr std::chrono::minutes kTimeout{10};
  FileLock lock = lock_key(cache_.store(), key, kTimeout, check_interruption);
  auto& [mutex, tunings] = memory_.get();
  const std::lock_guard guard(mutex);
  const auto entry = tunings.find(key.hex());
  if (entry != tunings.end() && entry->second == nullptr) tunings.erase(entry);
  return lock;
}

void TuningStore::store(const Key& key, std::shared_ptr<const Tuning> tuning) {
  nlohmann::json facts = json_of(*tuning);
  facts["entry"] = kTuningEntry;
  const StoreResult stored = cache_.store().store(key, {facts.dump(), {}});
  if (!stored.stored)
    log_message(LogLevel::kWarning,
                "the tuning record is not kept for other processes: {}; set LAZYROPE_CACHE_DIR",
                stored.reason);
  auto& [mutex, tunings] = memory_.get();
  const std::lock_guard lock(mutex);
  tunings[key.hex()] = std::move(tuning);
}

void TuningStore::mark_missing(const Key& key) {
  auto& [mutex, tunings] = memory_.get();
  const std::lock_guard lock(mutex);
  tunings[key.hex()] = nullptr;
}

void TuningStore::clear() {
  auto& [mutex, tunings] = memory_.get();
  const std::lock_guard lock(mutex);
  tunings.clear();
}

}  // namespace lazyrope
