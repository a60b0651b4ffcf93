// Asynchronous copies, in host C++.
#pragma once

#include "isa/memory.cuh"

namespace lazyrope {

template <bool kWholeLines>
inline void cp_async_cg_16(SharedPtr to, const void* from, int32 bytes) {
  emulator->async_copy(to.address, from, 16, bytes);
}
inline void cp_async_ca_4(SharedPtr to, const void* from) {
  emulator->async_copy(to.address, from, 4, 4);
}
inline void cp_async_commit_group() { emulator->async_commit(); }

template <int kPending>
inline void cp_async_wait_group() {
  emulator->async_wait(kPending);
}

}  // namespace lazyrope
