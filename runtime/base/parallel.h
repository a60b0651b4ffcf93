#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace lazyrope {

// Returns `asked` threads, or for 0 one per core.
inline std::size_t thread_count(int asked) {
  if (asked > 0) return static_cast<std::size_t>(asked);
  return std::max(1u, std::thread::hardware_concurrency());
}

// Calls run(i) for 0 <= i < count on several threads. After an exception no further call begins;
// the first exception is rethrown when all threads have ended.
template <class Run>
void for_each_parallel(std::size_t count, std::size_t threads, const Run& run) {
  std::atomic<std::size_t> next = 0;
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&] {
    for (std::size_t i = next++; i < count; i = next++) {
      try {
        run(i);
      } catch (...) {
        const std::lock_guard lock(mutex);
        if (!failure) failure = std::current_exception();
        next = count;
      }
    }
  };
  {
    std::vector<std::jthread> pool;
    for (std::size_t i = 1; i < std::min(count, threads); ++i) pool.emplace_back(work);
    work();
  }
  if (failure) std::rethrow_exception(failure);
}

}  // namespace lazyrope
