// Barriers, atomics, ordered loads and stores, and exchange between lanes in host C++. The emulator
// checks that all lanes of a warp agree on a collective and that named barriers get consistent
// thread counts. A deadlock is an error that names the barrier.
#pragma once

#include "isa/memory.cuh"

namespace lazyrope {

inline void bar_sync(Site site = here()) { emulator->bar_sync(site); }
inline void bar_sync(int32 id, int32 threads, Site site = here()) {
  emulator->bar_sync(id, threads, site);
}
inline void bar_arrive(int32 id, int32 threads, Site site = here()) {
  emulator->bar_arrive(id, threads, site);
}
inline void bar_warp_sync(Site site = here()) { emulator->bar_warp_sync(site); }

inline uint32 atom_acq_rel_gpu_inc(uint32* p, uint32 last, Site site = here()) {
  return emulator->atom(EmulatedAtomic::kInc, EmulatedOrder::kAcquireRelease, p, last, site);
}
inline uint32 atom_relaxed_gpu_inc(uint32* p, uint32 last, Site site = here()) {
  return emulator->atom(EmulatedAtomic::kInc, EmulatedOrder::kRelaxed, p, last, site);
}
inline uint32 atom_relaxed_gpu_exch(uint32* p, uint32 value, Site site = here()) {
  return emulator->atom(EmulatedAtomic::kExch, EmulatedOrder::kRelaxed, p, value, site);
}
inline uint32 ld_acquire_gpu(const uint32* p, Site site = here()) {
  return emulator->ld_acquire(p, site);
}

template <class T>
inline T ld_relaxed_gpu(const T* p, Site site = here()) {
  T value;
  emulator->ld_global(EmulatedLoad::kRelaxed, &value, p, sizeof(T), site);
  return value;
}
template <class T>
inline void ld_relaxed_gpu_if(bool wanted, const T* p, T& value, Site site = here()) {
  if (wanted) value = ld_relaxed_gpu(p, site);
}
template <class T>
inline void st_relaxed_gpu(T* p, T value, Site site = here()) {
  emulator->st_relaxed(p, &value, sizeof(T), site);
}

template <class T>
inline T shfl_sync(EmulatedShuffle kind, T value, int32 operand, Site site) {
  uint64 bits = 0;
  __builtin_memcpy(&bits, &value, sizeof(T));
  bits = emulator->shfl_sync(kind, bits, operand, site);
  __builtin_memcpy(&value, &bits, sizeof(T));
  return value;
}
template <class T>
inline T shfl_sync_idx(T value, int32 lane, Site site = here()) {
  return shfl_sync(EmulatedShuffle::kIdx, value, lane, site);
}
template <class T>
inline T shfl_sync_bfly(T value, int32 mask, Site site = here()) {
  return shfl_sync(EmulatedShuffle::kBfly, value, mask, site);
}
template <class T>
inline T shfl_sync_up(T value, int32 delta, Site site = here()) {
  return shfl_sync(EmulatedShuffle::kUp, value, delta, site);
}

inline uint32 vote_sync_ballot(bool predicate, Site site = here()) {
  return emulator->vote_sync_ballot(predicate, site);
}
inline bool vote_sync_any(bool predicate, Site site = here()) {
  return emulator->vote_sync_ballot(predicate, site) != 0;
}

inline bool elect_sync(Site site = here()) { return emulator->elect_sync(site); }

}  // namespace lazyrope
