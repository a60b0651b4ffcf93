// Places of shared memory that pass from those who fill them to those who use them, and back. Each
// has two mbarriers: one that it is full, one that it is empty.
#pragma once

#include "isa/mbarrier.cuh"
#include "isa/sync.cuh"

namespace lazyrope {

template <int kPlaceCount>
struct Handover {
  static constexpr int kPlaces = kPlaceCount;
  static constexpr int kBytes = kPlaces * 16;

  // One thread: how many arrive as a place is filled, and when it has been used.
  LAZYROPE_DEVICE static void init(SharedPtr memory, uint32 fillers, uint32 users) {
#pragma unroll
    for (int32 i = 0; i < 2 * kPlaces; ++i)
      mbarrier_init(memory + i * 8, i % 2 == 0 ? fillers : users);
    fence_mbarrier_init_release_cluster();
  }
};

// What one thread knows of a handover, on the side of those who fill or of those who use. It takes
// part in every pass of a place, or, told of them by something else, only waits, or only passes.
template <bool kFills>
class HandoverSide {
 public:
  LAZYROPE_DEVICE explicit HandoverSide(SharedPtr memory)
      : memory_(memory), phases_(kFills ? ~0u : 0u) {}

  // Until the place is empty, or full. `is_given`: as asked before.
  LAZYROPE_DEVICE void wait(int32 place, bool is_given = false) {
    if (!is_given) look(place);
    phases_ ^= 1u << place;
  }
  // Instead of wait(): something else has told that it would be over.
  LAZYROPE_DEVICE void know(int32 place) { phases_ ^= 1u << place; }
  // As wait(), for whoever will wait again before the place is passed.
  LAZYROPE_DEVICE void look(int32 place) const {
    while (!mbarrier_try_wait_parity(awaited(place), parity(place))) {
    }
  }
  // Whether wait() would be over at once.
  LAZYROPE_DEVICE bool is_given(int32 place) const {
    return mbarrier_test_wait_parity(awaited(place), parity(place));
  }

  // What tells the others that it is full, or empty.
  LAZYROPE_DEVICE SharedPtr given(int32 place) const {
    return memory_ + place * 16 + (kFills ? 0 : 8);
  }

  // A warp, which has done with the place.
  LAZYROPE_DEVICE void pass(int32 place) const {
    bar_warp_sync();
    if (elect_sync()) mbarrier_arrive(given(place));
  }

  // What wait() waits for.
  LAZYROPE_DEVICE SharedPtr awaited(int32 place) const {
    return memory_ + place * 16 + (kFills ? 8 : 0);
  }

 private:
  LAZYROPE_DEVICE uint32 parity(int32 place) const { return phases_ >> place & 1; }

  SharedPtr memory_;
  uint32 phases_;  // a bit a place
};

using FillSide = HandoverSide<true>;
using UseSide = HandoverSide<false>;

// The place whose turn it is in a ring.
template <int kPlaces>
struct RingPlace {
  int32 at = 0;

  LAZYROPE_DEVICE int32 next() const { return at + 1 == kPlaces ? 0 : at + 1; }
  LAZYROPE_DEVICE void advance() { at = next(); }
};

}  // namespace lazyrope
