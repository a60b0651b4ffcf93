#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <exception>
#include <mutex>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "runtime/base/fork.h"
#include "runtime/base/interruption.h"

namespace lazyrope {

// Returns `asked` threads, or for 0 one per core.
inline std::size_t thread_count(int asked) {
  if (asked > 0) return static_cast<std::size_t>(asked);
  return std::max(1u, std::thread::hardware_concurrency());
}

// The jobs of one call of for_each_parallel(), which threads take one by one.
class JobQueue {
 public:
  JobQueue(std::size_t jobs, std::size_t workers) : jobs_(jobs), working_(workers) {}

  // Runs jobs until none is left or the call has failed.
  template <class Run>
  void work(const Run& run) {
    for (std::size_t i = next_++; i < jobs_ && !stop_.stop_requested(); i = next_++) {
      try {
        run(i, stop_.get_token());
      } catch (...) {
        fail(std::current_exception());
      }
    }
    const std::lock_guard lock(mutex_);
    --working_;
    all_done_.notify_one();
  }

  // Keeps the first failure and tells all jobs to stop.
  void fail(std::exception_ptr failure) {
    const std::lock_guard lock(mutex_);
    if (!failure_) failure_ = std::move(failure);
    stop_.request_stop();
  }

  // Waits until all workers have ended, but not longer than `duration`. Returns whether they have.
  bool wait(std::chrono::milliseconds duration) {
    std::unique_lock lock(mutex_);
    return all_done_.wait_for(lock, duration, [this] { return working_ == 0; });
  }

  // Returns the first failure, or null. All workers must have ended.
  const std::exception_ptr& failure() const { return failure_; }

 private:
  const std::size_t jobs_;
  std::atomic<std::size_t> next_ = 0;
  std::stop_source stop_;
  std::mutex mutex_;
  std::condition_variable all_done_;
  std::size_t working_;
  std::exception_ptr failure_;
};

// Calls run(i, stop) for 0 <= i < count on at most `threads` other threads, and meanwhile watch()
// on this thread, every 20 ms. The first exception of either requests a stop: no further job
// begins, and the jobs that run should end soon, with Stopped. It is rethrown when all have ended.
template <class Run, class Watch>
void for_each_parallel(std::size_t count, std::size_t threads, const Run& run, const Watch& watch) {
  constexpr std::chrono::milliseconds kPeriod{20};
  const std::uint32_t forks = fork_count();
  const std::size_t workers = std::min(count, threads);
  JobQueue queue(count, workers);
  std::vector<std::jthread> pool;
  pool.reserve(workers);
  for (std::size_t i = 0; i < workers; ++i) pool.emplace_back([&] { queue.work(run); });
  while (!queue.wait(kPeriod)) {
    try {
      watch();
    } catch (...) {
      queue.fail(std::current_exception());
    }
    // A signal handler that watch() ran may have forked. The child has none of the threads.
    if (fork_count() != forks) {
      for (std::jthread& thread : pool) thread.detach();
      throw Stopped();
    }
  }
  pool.clear();
  if (queue.failure()) std::rethrow_exception(queue.failure());
}

// Calls run(i) for 0 <= i < count on several threads. After an exception no further call begins;
// the first exception is rethrown when all threads have ended.
template <class Run>
void for_each_parallel(std::size_t count, std::size_t threads, const Run& run) {
  for_each_parallel(count, threads, [&](std::size_t i, const std::stop_token&) { run(i); }, [] {});
}

}  // namespace lazyrope
