// Bulk copies of contiguous bytes, cp.async.bulk, and the proxy fences that they need. PTX ISA 9.0,
// "Data Movement and Conversion Instructions: Bulk copy" (sm_90 and later). One thread issues a
// copy for its CTA. Addresses and sizes are multiples of 16 bytes.
#pragma once

#include "isa/memory.cuh"

namespace lazyrope {

// Copies from global to shared memory. The copy counts its bytes down at `barrier` when they have
// arrived; the barrier's phase must expect them.
LAZYROPE_DEVICE void cp_async_bulk_shared_global(SharedPtr to, const void* from, uint32 bytes,
                                                 SharedPtr barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to.address),
      "l"(from), "r"(bytes), "r"(barrier.address)
      : "memory");
}

// Copies from shared to global memory. The copy sees only the writes to shared memory that a
// fence_proxy_async() has made visible.
LAZYROPE_DEVICE void cp_async_bulk_global_shared(void* to, SharedPtr from, uint32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(from.address), "r"(bytes)
               : "memory");
}

LAZYROPE_DEVICE void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most the kPending latest groups of this thread's copies to global memory are still
// in flight.
template <int kPending>
LAZYROPE_DEVICE void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// Waits only until the older groups have read their sources, so that this shared memory may be
// written again (cp.async.bulk.wait_group.read).
template <int kPending>
LAZYROPE_DEVICE void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// fence.proxy.async makes this thread's generic writes to shared memory visible to bulk copies and
// wgmma. A barrier after it extends this to the copies of other threads.
LAZYROPE_DEVICE void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

// Does the same for writes to global memory.
LAZYROPE_DEVICE void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace lazyrope
