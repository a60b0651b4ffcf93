// Warps that ask memory for little before others ask it for much: what is asked for last comes
// last. For speed alone, for nothing is ordered by it.
#pragma once

#include "isa/sync.cuh"

namespace lazyrope {

template <int kBarrier, int kFirstWarps, int kOtherWarps>
class Precedence {
  static constexpr int32 kThreads = (kFirstWarps + kOtherWarps) * kWarpThreads;

 public:
  // By all of the first: when they have asked, or, to be there until all are, that they will not.
  LAZYROPE_DEVICE static void tell_asked() { bar_arrive(kBarrier, kThreads); }
  LAZYROPE_DEVICE static void ask_nothing() { bar_sync(kBarrier, kThreads); }
  LAZYROPE_DEVICE static void await_asked() { bar_sync(kBarrier, kThreads); }
};

}  // namespace lazyrope
