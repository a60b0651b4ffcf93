// Warps that ask memory for little before others ask it for much: what is asked for last comes
// last. For speed alone, for nothing is ordered by it.
#pragma once

#include "isa/mbarrier.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

// By an mbarrier of which one phase is used: once that is over nobody waits any more. A named
// barrier that warps reach by different instructions would do, but not for compute-sanitizer.
class IssueOrder {
 public:
  LAZYROPE_DEVICE explicit IssueOrder(SharedPtr memory) : memory_(memory) {}

  // One thread: how many warps come first.
  LAZYROPE_DEVICE static void init_barrier(SharedPtr memory, uint32 leading_warps) {
    mbarrier_init(memory, leading_warps);
  }
  // Each of these warps, once, when it has asked.
  LAZYROPE_DEVICE void signal_issued() const {
    if (elect_sync()) mbarrier_arrive(memory_);
  }
  LAZYROPE_DEVICE void await_issued() const {
    while (!mbarrier_try_wait_parity(memory_, 0)) {
    }
  }

 private:
  SharedPtr memory_;
};

}  // namespace lazyrope
