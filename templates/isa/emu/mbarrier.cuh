// mbarrier in host C++. Beyond what hardware does, the emulator refuses:
// - an operation on an address where no barrier was initialized, and generic accesses to a barrier;
// - counts of arrivals or bytes that are out of range;
// - a phase that completes before every waiting thread has seen that the previous one is complete.
// At random, as the manual allows, try_wait returns false before the phase is complete, and
// test_wait although it is complete.
#pragma once

#include "isa/memory.cuh"

namespace lazyrope {

inline void mbarrier_init(SharedPtr barrier, uint32 count, Site site = here()) {
  emulator->mbarrier_init(barrier.address, count, site);
}
inline void fence_mbarrier_init_release_cluster() { emulator->fence_mbarrier_init(); }
inline void mbarrier_inval(SharedPtr barrier, Site site = here()) {
  emulator->mbarrier_inval(barrier.address, site);
}
inline void mbarrier_arrive(SharedPtr barrier, Site site = here()) {
  emulator->mbarrier_arrive(barrier.address, site);
}
inline void mbarrier_expect_tx(SharedPtr barrier, uint32 bytes, Site site = here()) {
  emulator->mbarrier_expect_tx(barrier.address, bytes, site);
}
inline void mbarrier_arrive_expect_tx(SharedPtr barrier, uint32 bytes, Site site = here()) {
  emulator->mbarrier_expect_tx(barrier.address, bytes, site);
  emulator->mbarrier_arrive(barrier.address, site);
}
inline bool mbarrier_try_wait_parity(SharedPtr barrier, uint32 parity, Site site = here()) {
  return emulator->mbarrier_try_wait_parity(barrier.address, parity, site);
}
inline bool mbarrier_test_wait_parity(SharedPtr barrier, uint32 parity, Site site = here()) {
  return emulator->mbarrier_test_wait_parity(barrier.address, parity, site);
}

}  // namespace lazyrope
