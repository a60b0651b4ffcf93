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
  int thread;  // the issuing thread's index in its CTA
  CopyBox box;
  std::uint32_t barrier;  // shared memory address of its mbarrier
  Site site;
  bool is_early;  // it may land soon, before copies that were issued earlier
};

// A bulk copy from shared memory to global memory.
struct BulkStore {
  CopyBox box;
  Site site;
  bool is_read = false;               // the source has been read
  std::vector<std::byte> image = {};  // the bytes read from shared memory
};

// The bulk copies of one thread from shared memory, in commit groups. A copy reads its source and
// writes its destination as late as PTX allows: at the waits that cover it.
class BulkStores {
 public:
  using Group = std::vector<BulkStore>;

  void add(BulkStore store) { open_.push_back(std::move(store)); }
  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }

  // Calls visit(store) for the copies of all groups but the latest `pending`, the oldest group
  // first.
  template <class Visit>
  void for_all_but(std::size_t pending, const Visit& visit) {
    for (std::size_t i = 0; i + pending < groups_.size(); ++i)
      for (BulkStore& store : groups_[i]) visit(store);
  }
  // Drops all groups but the latest `pending`: their copies are complete.
  void drop_all_but(std::size_t pending) {
    while (groups_.size() > pending) groups_.pop_front();
  }

  // Returns a copy that no commit has put into a group, so that no wait can cover it, or null.
  const BulkStore* uncommitted() const { return open_.empty() ? nullptr : &open_.front(); }
  // Returns a copy whose source no wait of the thread has covered, or null.
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
