// Barriers in shared memory that count arrivals and bytes. PTX ISA 9.0, "Parallel Synchronization
// and Communication Instructions: mbarrier" (sm_90 and later). A barrier takes 8 bytes, aligned to
// 8; its phases have parity 0, 1, 0, ...
#pragma once

#include "isa/memory.cuh"

namespace lazyrope {

// A phase is complete when `count` arrivals and all bytes that are expected in it have come.
LAZYROPE_DEVICE void mbarrier_init(SharedPtr barrier, uint32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier.address), "r"(count)
               : "memory");
}

// Shows this thread's barriers to asynchronous copies, and to the cluster.
LAZYROPE_DEVICE void fence_mbarrier_init_release_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

LAZYROPE_DEVICE void mbarrier_inval(SharedPtr barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier.address) : "memory");
}

LAZYROPE_DEVICE void mbarrier_arrive(SharedPtr barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier.address) : "memory");
}

// Expects `bytes` more in the phase that is open, then arrives.
LAZYROPE_DEVICE void mbarrier_arrive_expect_tx(SharedPtr barrier, uint32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier.address),
               "r"(bytes)
               : "memory");
}

LAZYROPE_DEVICE void mbarrier_expect_tx(SharedPtr barrier, uint32 bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier.address),
               "r"(bytes)
               : "memory");
}

// Whether the phase of that parity is complete: that before the open one, or the open one itself,
// for which it waits a while. False says nothing: ask again.
LAZYROPE_DEVICE bool mbarrier_try_wait_parity(SharedPtr barrier, uint32 parity) {
  uint32 complete;
  asm volatile(
      "{\n\t.reg .pred p;\n\tmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
      "selp.b32 %0, 1, 0, p;\n\t}"
      : "=r"(complete)
      : "r"(barrier.address), "r"(parity)
      : "memory");
  return complete != 0;
}
// The same at once.
LAZYROPE_DEVICE bool mbarrier_test_wait_parity(SharedPtr barrier, uint32 parity) {
  uint32 complete;
  asm volatile(
      "{\n\t.reg .pred p;\n\tmbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
      "selp.b32 %0, 1, 0, p;\n\t}"
      : "=r"(complete)
      : "r"(barrier.address), "r"(parity)
      : "memory");
  return complete != 0;
}

}  // namespace lazyrope
