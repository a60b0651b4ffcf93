#pragma once

#include <chrono>
#include <functional>

#include "cache/disk_store.h"

namespace lazyrope {

// Takes DiskStore::lock(). Logs a wait of more than two seconds, and once in a process that a lock
// could not be taken. `on_pause` is called before each pause; an exception from it ends the wait.
FileLock lock_key(const DiskStore& store, const Key& key, std::chrono::milliseconds timeout,
                  const std::function<void()>& on_pause);

}  // namespace lazyrope
