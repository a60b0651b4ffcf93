#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <vector>

#include "runtime/emulator/clocks.h"
#include "runtime/emulator/copy_box.h"

namespace lazyrope {

struct EmulatedCta;

// A bulk copy to shared memory that has not landed.
struct BulkLoad {
  EmulatedCta* cta;
  int thread;  // that issued it
  CopyBox box;
  std::uint32_t barrier;
  Site site;
  bool is_early;  // it lands soon, whatever has been begun before
};

// A bulk copy from shared memory.
struct BulkStore {
  CopyBox box;
  Site site;
  bool is_read = false;
  std::vector<std::byte> image = {};  // what it has read
};

// The bulk copies of a thread from shared memory, in groups. They read and write when they are
// waited for, and not before.
class BulkStores {
 public:
  using Group = std::vector<BulkStore>;

  void add(BulkStore store) { open_.push_back(std::move(store)); }
  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }

  // Calls visit(store) for all groups but the latest `pending`, the oldest first.
  template <class Visit>
  void for_all_but(std::size_t pending, const Visit& visit) {
    for (std::size_t i = 0; i + pending < groups_.size(); ++i)
      for (BulkStore& store : groups_[i]) visit(store);
  }
  // Those of all groups but the latest `pending` are done.
  void drop_all_but(std::size_t pending) {
    while (groups_.size() > pending) groups_.pop_front();
  }

  // One that no wait can wait for; one whose source the thread did not wait for.
  const BulkStore* uncommitted() const { return open_.empty() ? nullptr : &open_.front(); }
  const BulkStore* unread() const {
    for (const Group& group : groups_)
      for (const BulkStore& store : group)
        if (!store.is_read) return &store;
    return nullptr;
  }

 private:
  Group open_;
  std::deque<Group> groups_;
};

}  // namespace lazyrope
