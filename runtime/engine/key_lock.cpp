#include "runtime/engine/key_lock.h"

#include <atomic>
#include <filesystem>

#include "runtime/base/log.h"

namespace lazyrope {
namespace {

constexpr std::chrono::seconds kLongWait{2};

constinit std::atomic<bool> told_of_no_lock = false;

void log_a_missing_lock(const FileLock& lock) {
  if (lock.reason().empty() || told_of_no_lock.exchange(true)) return;
  log_message(LogLevel::kWarning, "{}; {}. Further locks that cannot be taken are not logged",
              lock.reason(),
              lock.is_held() ? "processes take turns by files named *.claim instead"
                             : "several processes may compile one kernel");
}

}  // namespace

FileLock lock_key(const DiskStore& store, const Key& key, std::chrono::milliseconds timeout,
                  const std::function<void()>& on_pause) {
  std::filesystem::path logged;
  FileLock lock = store.lock(key, timeout, [&](const LockWait& wait) {
    on_pause();
    if (wait.waited < kLongWait || wait.path == logged) return;
    logged = wait.path;
    log_message(LogLevel::kWarning,
                "waiting for {}, which another process or thread holds while it does the same work",
                wait.path.native());
  });
  if (!store.root().empty()) log_a_missing_lock(lock);
  return lock;
}

}  // namespace lazyrope
