// Barriers in shared memory that count arrivals and bytes. PTX ISA 9.0, "Parallel Synchronization
// and Communication Instructions: mbarrier" (sm_90 and later). A barrier is an object of 8 bytes,
// aligned to 8. Its phases have parity 0, 1, 0, ...
#pragma once

#include "isa/memory.cuh"

namespace lazyrope {

// A phase completes after `count` arrivals and when all bytes that it expects have been copied.
LAZYROPE_DEVICE void mbarrier_init(SharedPtr barrier, uint32 count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier.address), "r"(count)
               : "memory");
}

// fence.mbarrier_init makes the barriers that this thread initialized visible to the cluster and to
// asynchronous copies.
LAZYROPE_DEVICE void fence_mbarrier_init_release_cluster() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

LAZYROPE_DEVICE void mbarrier_inval(SharedPtr barrier) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(barrier.address) : "memory");
}

LAZYROPE_DEVICE void mbarrier_arrive(SharedPtr barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier.address) : "memory");
}

// Adds `bytes` to the bytes that the current phase expects, then arrives.
LAZYROPE_DEVICE void mbarrier_arrive_expect_tx(SharedPtr barrier, uint32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier.address),
               "r"(bytes)
               : "memory");
}

// Adds `bytes` to the bytes that the current phase expects.
LAZYROPE_DEVICE void mbarrier_expect_tx(SharedPtr barrier, uint32 bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier.address),
               "r"(bytes)
               : "memory");
}

// mbarrier.try_wait returns true if the phase with this parity is complete. Only the current phase
// and the one before it can be asked about. The thread may be suspended for a while until the phase
// completes. The result may be false although the phase is complete, so callers repeat the call.
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
// mbarrier.test_wait does the same without suspending the thread.
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
