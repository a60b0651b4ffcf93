#pragma once

#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/emulator/fault.h"

namespace lazyrope {

// One cp.async of one thread.
struct AsyncCopy {
  std::uint32_t to;    // shared memory address
  const void* from;    // global memory
  std::int32_t size;   // bytes written
  std::int32_t bytes;  // bytes read; the rest become zero
  Site site;
};

// The cp.async copies of one thread, in commit groups. A copy lands as late as PTX allows: at the
// wait that covers it. A kernel that reads earlier therefore always faults.
class AsyncCopies {
 public:
  void add(const AsyncCopy& copy) { open_.push_back(copy); }
  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }

  // Calls land(copy) for the copies of all groups but the latest `pending`, the oldest group first.
  template <class Land>
  void wait(std::size_t pending, const Land& land) {
    for (; groups_.size() > pending; groups_.pop_front())
      for (const AsyncCopy& copy : groups_.front()) land(copy);
  }

  // Returns a copy that no commit has put into a group, so that no wait can cover it, or null.
  const AsyncCopy* uncommitted() const { return open_.empty() ? nullptr : &open_.front(); }

 private:
  std::vector<AsyncCopy> open_;
  std::deque<std::vector<AsyncCopy>> groups_;
};

}  // namespace lazyrope
