// Barriers, fences, atomics, and exchange between lanes, in host C++.
#pragma once

#include "isa/memory.cuh"

namespace lazyrope {

inline void nothing(void* const*) {}

inline void bar_sync() { emulator->cta_barrier(); }
inline void bar_warp_sync() { emulator->warp_operation("bar.warp.sync", nothing, nullptr); }
inline void fence_acq_rel_gpu() {}

inline uint32 atom_acq_rel_gpu_inc(uint32* p, uint32 last) {
  const uint32 before = *p;
  *p = before >= last ? 0 : before + 1;
  return before;
}

inline uint32 atom_relaxed_gpu_exch(uint32* p, uint32 value) {
  const uint32 before = *p;
  *p = value;
  return before;
}

inline uint32 ld_acquire_gpu(const uint32* p) { return *p; }

template <class T>
struct ExchangeLane {
  T given;
  int32 source;
  T received;
};

template <class T>
inline void exchange_operation(void* const* lanes) {
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    auto& to = *static_cast<ExchangeLane<T>*>(lanes[lane]);
    to.received = static_cast<ExchangeLane<T>*>(lanes[to.source])->given;
  }
}

template <class T>
inline T exchange(const char* name, T value, int32 source) {
  ExchangeLane<T> lane = {value, source, value};
  emulator->warp_operation(name, exchange_operation<T>, &lane);
  return lane.received;
}

template <class T>
inline T shfl_sync_idx(T value, int32 lane) {
  return exchange("shfl.idx", value, lane % kWarpThreads);
}
template <class T>
inline T shfl_sync_bfly(T value, int32 mask) {
  return exchange("shfl.bfly", value, lane_index() ^ mask);
}
template <class T>
inline T shfl_sync_up(T value, int32 delta) {
  return exchange("shfl.up", value, lane_index() < delta ? lane_index() : lane_index() - delta);
}

struct VoteLane {
  bool given;
  uint32 received;
};

inline void vote_operation(void* const* lanes) {
  uint32 ballot = 0;
  for (int lane = 0; lane < kWarpThreads; ++lane)
    if (static_cast<VoteLane*>(lanes[lane])->given) ballot |= 1u << lane;
  for (int lane = 0; lane < kWarpThreads; ++lane)
    static_cast<VoteLane*>(lanes[lane])->received = ballot;
}

inline uint32 vote_sync_ballot(bool predicate) {
  VoteLane lane = {predicate, 0};
  emulator->warp_operation("vote", vote_operation, &lane);
  return lane.received;
}
inline bool vote_sync_any(bool predicate) { return vote_sync_ballot(predicate) != 0; }

}  // namespace lazyrope
