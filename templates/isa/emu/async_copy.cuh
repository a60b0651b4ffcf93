// cp.async in host C++. Unlike hardware, the emulator refuses any access to the destination before
// the thread has waited for the copy. It also checks bounds and alignment, and that every copy is
// committed before the thread ends.
#pragma once

#include "isa/memory.cuh"

namespace lazyrope {

template <bool kWholeLines>
inline void cp_async_cg_16(SharedPtr to, const void* from, int32 bytes, Site site = here()) {
  emulator->cp_async(to.address, from, 16, bytes, site);
}
inline void cp_async_ca_4(SharedPtr to, const void* from, Site site = here()) {
  emulator->cp_async(to.address, from, 4, 4, site);
}
inline void cp_async_commit_group() { emulator->cp_async_commit_group(); }

template <int kPending>
inline void cp_async_wait_group() {
  emulator->cp_async_wait_group(kPending);
}

}  // namespace lazyrope
