// Asynchronous copies, global to shared. PTX ISA 9.0, "cp.async" (sm_80 and later).
#pragma once

#include "isa/memory.cuh"

namespace lazyrope {

// Copies `bytes` (0 to 16) of 16 bytes and fills the rest with zeros; reads nothing when bytes is
// 0. kWholeLines: L2 fetches all 128 bytes that they lie in.
template <bool kWholeLines>
LAZYROPE_DEVICE void cp_async_cg_16(SharedPtr to, const void* from, int32 bytes) {
  if constexpr (kWholeLines)
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(to.address),
                 "l"(from), "r"(bytes)
                 : "memory");
  else
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to.address), "l"(from),
                 "r"(bytes)
                 : "memory");
}

LAZYROPE_DEVICE void cp_async_ca_4(SharedPtr to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to.address), "l"(from) : "memory");
}

LAZYROPE_DEVICE void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most kPending of this thread's latest groups are still under way.
template <int kPending>
LAZYROPE_DEVICE void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace lazyrope
