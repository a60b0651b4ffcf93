// Asynchronous copies from global to shared memory: cp.async, cp.async.commit_group and
// cp.async.wait_group. PTX ISA 9.0, "Data Movement and Conversion Instructions: Non-bulk copy"
// (sm_80 and later).
#pragma once

#include "isa/memory.cuh"

namespace lazyrope {

// cp.async.cg of 16 bytes: copies the first `bytes` (0 to 16) and fills the rest with zeros. With
// `bytes` 0 it reads nothing. With kWholeLines, L2 fetches the whole line of 128 bytes.
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

// cp.async.ca of 4 bytes.
LAZYROPE_DEVICE void cp_async_ca_4(SharedPtr to, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to.address), "l"(from) : "memory");
}

LAZYROPE_DEVICE void cp_async_commit_group() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}

// Waits until at most the kPending latest groups of this thread are still in flight.
template <int kPending>
LAZYROPE_DEVICE void cp_async_wait_group() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace lazyrope
