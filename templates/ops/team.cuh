// Teams: threads of a CTA that work together. A team gives each thread its rank and its warp's
// index, and some teams have a barrier.
#pragma once

#include "isa/sync.cuh"

namespace lazyrope {

struct WholeCta {
  LAZYROPE_DEVICE static int32 rank() { return thread_index(); }
  LAZYROPE_DEVICE static int32 warp() { return warp_index(); }
  LAZYROPE_DEVICE static int32 size() { return block_threads(); }
  LAZYROPE_DEVICE static void sync() { bar_sync(); }
};

// The CTA is divided into teams of kThreads each: a warp, or the whole CTA.
template <int kThreads>
struct Team {
  LAZYROPE_DEVICE static int32 rank() { return thread_index() % kThreads; }
  LAZYROPE_DEVICE static constexpr int32 size() { return kThreads; }
};

// The warps from kFirstWarp on are divided into teams of kWarps. The first team has barrier
// kBarrier, the second kBarrier + 1, and so on.
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

// A team of kWarps warps from kFirstWarp on, with barrier kBarrier.
template <int kFirstWarp, int kWarps, int kBarrier>
struct WarpTeam {
  LAZYROPE_DEVICE static int32 rank() { return thread_index() - kFirstWarp * kWarpThreads; }
  LAZYROPE_DEVICE static int32 warp() { return warp_index() - kFirstWarp; }
  LAZYROPE_DEVICE static constexpr int32 size() { return kWarps * kWarpThreads; }
  LAZYROPE_DEVICE static void sync() { bar_sync(kBarrier, kWarps * kWarpThreads); }
};

}  // namespace lazyrope
