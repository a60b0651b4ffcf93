// Makes some warps issue their few loads before other warps issue many, because loads are served
// about in the order in which they are issued. It affects speed only: no result depends on it.
#pragma once

#include "isa/mbarrier.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

// This is an mbarrier of which only the first phase is used. A named barrier would serve too, but
// compute-sanitizer rejects a named barrier that warps reach by different instructions.
//
// | barrier      | who arrives, how many      | who waits   | what it protects |
// |--------------|----------------------------|-------------|--------------------------------------|
// | the mbarrier | leading warps, 1 each,     | other warps | no data: the leading warps' loads |
// |              | once                       |             | are issued first |
class IssueOrder {
 public:
  LAZYROPE_DEVICE explicit IssueOrder(SharedPtr memory) : memory_(memory) {}

  // One thread calls this. `leading_warps` is the number of warps that issue first.
  LAZYROPE_DEVICE static void init_barrier(SharedPtr memory, uint32 leading_warps) {
    mbarrier_init(memory, leading_warps);
  }
  // Each leading warp calls this once, after it has issued its loads.
  LAZYROPE_DEVICE void signal_issued() const {
    if (elect_sync()) mbarrier_arrive(memory_);
  }
  // Each of the other warps calls this before it issues its loads.
  LAZYROPE_DEVICE void await_issued() const {
    while (!mbarrier_try_wait_parity(memory_, 0)) {
    }
  }

 private:
  SharedPtr memory_;
};

}  // namespace lazyrope
