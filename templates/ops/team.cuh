// Threads of a CTA that share a piece of work: each has a rank among them, as has its warp, and
// they may wait for each other.
#pragma once

#include "isa/sync.cuh"

namespace lazyrope {

struct WholeCta {
  LAZYROPE_DEVICE static int32 rank() { return thread_index(); }
  LAZYROPE_DEVICE static int32 warp() { return warp_index(); }
  LAZYROPE_DEVICE static int32 size() { return block_threads(); }
  LAZYROPE_DEVICE static void sync() { bar_sync(); }
};

// Each kThreads of the CTA, which is divided into such teams: a warp, or all that there are.
template <int kThreads>
struct Team {
  LAZYROPE_DEVICE static int32 rank() { return thread_index() % kThreads; }
  LAZYROPE_DEVICE static constexpr int32 size() { return kThreads; }
};

// The CTA's warps from one on, kWarps each, the first of which have barrier kBarrier, the next that
// behind it, and so on.
template <int kFirstWarp, int kWarps, int kBarrier>
struct WarpTeams {
  LAZYROPE_DEVICE static int32 team() {
    return static_cast<int32>(static_cast<uint32>(warp_index() - kFirstWarp) / kWarps);
  }
  LAZYROPE_DEVICE static int32 rank() {
    return static_cast<int32>(static_cast<uint32>(thread_index() - kFirstWarp * kWarpThreads) %
                              (kWarps * kWarpThreads));
  }
  LAZYROPE_DEVICE static int32 warp() {
    return static_cast<int32>(static_cast<uint32>(warp_index() - kFirstWarp) % kWarps);
  }
  LAZYROPE_DEVICE static constexpr int32 size() { return kWarps * kWarpThreads; }
  LAZYROPE_DEVICE static void sync() { bar_sync(kBarrier + team(), size()); }
};

// Some of the CTA's warps, with a barrier of their own.
template <int kFirstWarp, int kWarps, int kBarrier>
struct WarpTeam {
  LAZYROPE_DEVICE static int32 rank() { return thread_index() - kFirstWarp * kWarpThreads; }
  LAZYROPE_DEVICE static int32 warp() { return warp_index() - kFirstWarp; }
  LAZYROPE_DEVICE static constexpr int32 size() { return kWarps * kWarpThreads; }
  LAZYROPE_DEVICE static void sync() { bar_sync(kBarrier, kWarps * kWarpThreads); }
};

}  // namespace lazyrope
