#include "runtime/engine/cache_budget.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <vector>

#include "cache/error.h"
#include "runtime/base/log.h"

namespace lazyrope {
namespace {

// Returns a value of LAZYROPE_CACHE_MAX_BYTES that holds so many bytes.
std::string budget_for(std::uint64_t bytes) {
  constexpr std::uint64_t kMegabyte = 1 << 20;
  return fmt::format("{}M", bytes / kMegabyte + 1);
}

}  // namespace

void CacheBudget::note_use(const std::string& key, const std::string& kernel, std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  used_.insert_or_assign(key, Use{kernel, bytes});
}

Removed CacheBudget::enforce(const DiskStore& store) {
  try {
    const Removed removed = store.prune(max_bytes_);
    if (removed.excess_bytes > 0)
      log_message(LogLevel::kWarning,
                  "pinned kernels of the cache exceed LAZYROPE_CACHE_MAX_BYTES by {} bytes, so no "
                  "other kernel is kept: raise it, or see `lazyrope cache unpin`",
                  removed.excess_bytes);
    if (removed.entries() == 0) return removed;
    log_message(LogLevel::kInfo,
                "removed {} of the cache's entries ({} bytes), to keep it within {} bytes",
                removed.entries(), removed.bytes, max_bytes_);
    warn_of_used(removed);
    return removed;
  } catch (const CacheError& error) {
    log_message(LogLevel::kWarning, "the cache was not pruned: {}", error.what());
    return {};
  }
}

void CacheBudget::warn_of_used(const Removed& removed) {
  const std::lock_guard lock(mutex_);
  std::vector<std::string> lost;
  for (const std::string& key : removed.keys)
    if (const auto use = used_.find(key); use != used_.end()) lost.push_back(use->second.kernel);
  if (lost.empty() || has_warned_) return;
  has_warned_ = true;
  std::uint64_t bytes = 0;
  for (const auto& [key, use] : used_) bytes += use.bytes;
  log_message(
      LogLevel::kWarning,
      "the cache's limit is too small: LAZYROPE_CACHE_MAX_BYTES={}, and the {} kernels that "
      "this process has used so far have {} bytes. The limit removes {}, so each process "
      "compiles again. Set LAZYROPE_CACHE_MAX_BYTES={} or more",
      max_bytes_, used_.size(), bytes, fmt::join(lost, ", "), budget_for(bytes));
}

}  // namespace lazyrope
