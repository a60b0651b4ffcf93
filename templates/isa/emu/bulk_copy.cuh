// cp.async.bulk in host C++. Beyond what hardware does, the emulator refuses:
// - any access to the destination, and any write to the source, of a copy in flight;
// - a source that a thread has written without a proxy fence since;
// - a barrier that its owner has not fenced since it initialized it;
// - the end of a thread that has not committed a copy, or of a CTA that has not waited for one.
#pragma once

#include "isa/memory.cuh"

namespace lazyrope {

inline void cp_async_bulk_shared_global(SharedPtr to, const void* from, uint32 bytes,
                                        SharedPtr barrier, Site site = here()) {
  emulator->cp_async_bulk_load(to.address, from, bytes, barrier.address, site);
}
inline void cp_async_bulk_global_shared(void* to, SharedPtr from, uint32 bytes,
                                        Site site = here()) {
  emulator->cp_async_bulk_store(to, from.address, bytes, site);
}
inline void cp_async_bulk_commit_group() { emulator->cp_async_bulk_commit_group(); }

template <int kPending>
inline void cp_async_bulk_wait_group() {
  emulator->cp_async_bulk_wait_group(kPending, /*reads=*/false);
}
template <int kPending>
inline void cp_async_bulk_wait_group_read() {
  emulator->cp_async_bulk_wait_group(kPending, /*reads=*/true);
}

inline void fence_proxy_async() { emulator->fence_proxy_async(); }
inline void fence_proxy_async_global() { emulator->fence_proxy_async_global(); }

}  // namespace lazyrope
