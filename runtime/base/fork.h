#pragma once

#include <pthread.h>

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <utility>

namespace lazyrope {

// A child that fork() makes has one thread. Locks that other threads of the parent held stay locked
// in it for ever, and what they were changing stays half changed. The tools below make sure that
// the child neither waits for such a lock nor reads such data.

// Returns the number of forks between the process that loaded the library and this one.
std::uint32_t fork_count() noexcept;

// A mutex that a child finds free, whatever thread of the parent holds it. It suits data that is
// valid at any moment; PerProcess holds other data. fork() does not wait for it.
class ForkMutex {
 public:
  bool try_lock() noexcept {
    std::uint32_t seen = word_.load(std::memory_order_relaxed);
    return seen != locked() &&
           word_.compare_exchange_strong(seen, locked(), std::memory_order_acquire);
  }
  void lock() noexcept {
    while (!try_lock()) word_.wait(locked(), std::memory_order_relaxed);
  }
  void unlock() noexcept {
    word_.store(0, std::memory_order_release);
    word_.notify_one();
  }

 private:
  // A lock from before the last fork has another value, and so is no lock.
  static std::uint32_t locked() noexcept { return fork_count() + 1; }

  std::atomic<std::uint32_t> word_ = 0;
};

// A value that is made when it is first needed. Safe to use from several threads. A child that is
// forked while a thread of the parent makes the value makes it itself; the half-made one stays in
// memory. See Lazy and PerProcess below.
template <class T, bool kIsPerProcess>
class LazyValue {
 public:
  using Make = std::function<std::unique_ptr<T>()>;

  explicit LazyValue(Make make = [] { return std::make_unique<T>(); }) : make_(std::move(make)) {}
  LazyValue(const LazyValue&) = delete;
  LazyValue& operator=(const LazyValue&) = delete;
  ~LazyValue() { delete usable(); }

  // Lets exceptions of `make` through; the next call then tries again.
  T& get() {
    if (Made* const made = usable(); made != nullptr) return *made->value;
    const std::lock_guard lock(mutex_);
    if (Made* const made = usable(); made != nullptr) return *made->value;
    Made* const made = new Made{fork_count(), make_()};
    made_.store(made, std::memory_order_release);
    return *made->value;
  }

 private:
  struct Made {
    std::uint32_t fork;
    std::unique_ptr<T> value;
  };

  Made* usable() const noexcept {
    Made* const made = made_.load(std::memory_order_acquire);
    return made != nullptr && kIsPerProcess && made->fork != fork_count() ? nullptr : made;
  }

  Make make_;
  ForkMutex mutex_;
  std::atomic<Made*> made_ = nullptr;
};

// A value that a child shares with its parent once it is made. It must not change afterwards.
template <class T>
using Lazy = LazyValue<T, false>;

// A value of which each process has its own. A child never touches the parent's again, which stays
// in memory, because a thread of the parent may have been changing it.
template <class T>
using PerProcess = LazyValue<T, true>;

// Makes fork() wait until `mutex` is free, so that a child finds the data that it guards whole.
// This is for mutexes that are held for microseconds and under which no other lock is taken. Call
// it once, when the library is loaded.
template <std::mutex& kMutex>
void hold_across_forks() noexcept {
  // NOLINTBEGIN(readability-redundant-parentheses): clang-tidy sees them around the argument.
  constexpr auto kUnlock = [] { kMutex.unlock(); };
  ::pthread_atfork([] { kMutex.lock(); }, kUnlock, kUnlock);
  // NOLINTEND(readability-redundant-parentheses)
}

}  // namespace lazyrope
