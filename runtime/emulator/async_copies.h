#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/emulator/fault.h"

namespace lazyrope {

struct AsyncCopy {
  std::uint32_t to;
  const void* from;
  std::int32_t size;   // written
  std::int32_t bytes;  // of them read; the rest become zero
  Site site;
};

// The cp.async copies of a thread. They land when they are waited for, and not before.
class AsyncCopies {
 public:
  void add(const AsyncCopy& copy) { open_.push_back(copy); }
  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }

  // Lands all groups but the latest `pending`.
  template <class Land>
  void wait(std::size_t pending, const Land& land) {
    for (; groups_.size() > pending; groups_.pop_front())
      for (const AsyncCopy& copy : groups_.front()) land(copy);
  }

  // A copy that no wait can wait for, if there is one.
  const AsyncCopy* uncommitted() const { return open_.empty() ? nullptr : &open_.front(); }

 private:
  std::vector<AsyncCopy> open_;
  std::deque<std::vector<AsyncCopy>> groups_;
};

}  // namespace lazyrope
