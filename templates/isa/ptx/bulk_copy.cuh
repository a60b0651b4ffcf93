// Asynchronous copies of runs of bytes. PTX ISA 9.0, "Data Movement and Conversion Instructions:
// Asynchronous copy, Bulk copy" (sm_90 and later). Addresses and sizes are multiples of 16. One
// thread copies for all.
#pragma once

#include "isa/memory.cuh"

namespace lazyrope {

// The barrier, which must expect them, is told of the bytes when they have come.
LAZYROPE_DEVICE void cp_async_bulk_shared_global(SharedPtr to, const void* from, uint32 bytes,
                                                 SharedPtr barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to.address),
      "l"(from), "r"(bytes), "r"(barrier.address)
      : "memory");
}

// Reads what fence_proxy_async() has shown it.
LAZYROPE_DEVICE void cp_async_bulk_global_shared(void* to, SharedPtr from, uint32 bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(to),
               "r"(from.address), "r"(bytes)
               : "memory");
}

LAZYROPE_DEVICE void cp_async_bulk_commit_group() {
  asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's latest groups of copies to global memory are still
// under way.
template <int kPending>
LAZYROPE_DEVICE void cp_async_bulk_wait_group() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(kPending) : "memory");
}

// As above, or have at least read all that they read: shared memory may be written again.
template <int kPending>
LAZYROPE_DEVICE void cp_async_bulk_wait_group_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(kPending) : "memory");
}

// Between this thread's ordinary writes to shared memory and asynchronous copies, or wgmma, that
// read them; a barrier carries them to other threads' copies.
LAZYROPE_DEVICE void fence_proxy_async() {
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

LAZYROPE_DEVICE void fence_proxy_async_global() {
  asm volatile("fence.proxy.async.global;" ::: "memory");
}

}  // namespace lazyrope
