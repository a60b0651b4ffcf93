#pragma once

#include <atomic>
#include <memory>
#include <utility>

namespace lazyrope {

// A value that readers see without a lock. A change makes a new version of the whole value; earlier
// versions stay in memory, so references to them stay valid. It is for values that change a few
// times in a process. Without a lock, a process that is forked during a change is never stuck.
template <class T>
class Versions {
 public:
  explicit Versions(T first) : latest_(new Version{std::move(first), nullptr}) {}
  Versions(const Versions&) = delete;
  Versions& operator=(const Versions&) = delete;
  ~Versions() {
    const Version* version = latest_.load(std::memory_order_acquire);
    while (version != nullptr) delete std::exchange(version, version->previous);
  }

  const T& latest() const { return latest_.load(std::memory_order_acquire)->value; }

  // Publishes a copy of the latest value after change(copy), unless that throws. If another thread
  // publishes a version meanwhile, it is called again for a copy of that one.
  template <class Change>
  void change(const Change& change) {
    const Version* previous = latest_.load(std::memory_order_acquire);
    while (true) {
      auto next = std::make_unique<Version>(Version{previous->value, previous});
      change(next->value);
      if (latest_.compare_exchange_strong(previous, next.get(), std::memory_order_acq_rel)) {
        (void)next.release();
        return;
      }
    }
  }

 private:
  struct Version {
    T value;
    const Version* previous;
  };

  std::atomic<const Version*> latest_;
};

}  // namespace lazyrope
