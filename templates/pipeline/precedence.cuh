// Warps that ask memory for little before others ask it for much: what is asked for last comes
// last. For speed alone, for nothing is ordered by it.
#pragma once

#include "isa/mbarrier.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

// By an mbarrier of which one phase is used: once that is over nobody waits any more. A named
// barrier that warps reach by different instructions would do, but not for compute-sanitizer.
class Precedence {
 public:
  LAZYROPE_DEVICE explicit Precedence(SharedPtr memory) : memory_(memory) {}

  // One thread: how many warps come first.
  LAZYROPE_DEVICE static void set_up(SharedPtr memory, uint32 first_warps) {
    mbarrier_init(memory, first_warps);
  }
  // Each of these warps, once, when it has asked.
  LAZYROPE_DEVICE void tell_asked() const {
    if (elect_sync()) mbarrier_arrive(memory_);
  }
  LAZYROPE_DEVICE void await_asked() const {
    while (!mbarrier_try_wait_parity(memory_, 0)) {
    }
  }

 private:
  SharedPtr memory_;
};

}  // namespace lazyrope
