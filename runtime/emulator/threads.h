#pragma once

#include <array>
#include <boost/context/fiber.hpp>
#include <cstddef>
#include <optional>
#include <vector>

#include "runtime/emulator/async_copies.h"
#include "runtime/emulator/bulk_copies.h"
#include "runtime/emulator/mbarriers.h"
#include "runtime/emulator/products.h"
#include "runtime/emulator/shared_memory.h"

namespace lazyrope {

inline constexpr int kEmulatedWarp = 32;
inline constexpr int kEmulatedWarpgroup = 128;
inline constexpr int kNamedBarriers = 16;

// The instruction at which a thread waits or polls.
struct Wait {
  const char* what;
  Site site;
  const Mbarrier* barrier = nullptr;  // the mbarrier, if it waits for one
  int id = -1;                        // the named barrier, if it waits for one
};

struct EmulatedCta;

// A thread of the launch, as a fiber.
struct EmulatedThreadState {
  EmulatorThread kernel_view{};
  EmulatedCta* cta = nullptr;
  boost::context::fiber fiber;   // where the thread continues
  boost::context::fiber resume;  // returns to the scheduler
  AsyncCopies copies;
  BulkStores stores;
  std::uint32_t init_fences = 0;  // fence.mbarrier_init and fence.proxy.async that it has made
  bool was_rejected = false;      // its latest mbarrier.try_wait returned false
  std::optional<Violation> late;  // a violation found where nothing may be thrown
  std::optional<Wait> wait;       // the instruction at which it waits or polls
  bool finished = false;

  int lane() const { return kernel_view.thread % kEmulatedWarp; }
  int warp() const { return kernel_view.thread / kEmulatedWarp; }
};

// The threads that have reached an operation which a whole group executes together.
struct Rendezvous {
  Wait at{};  // where the first thread arrived
  std::vector<EmulatedThreadState*> threads;
  std::array<void*, kEmulatedWarpgroup> operands{};  // by lane of a warp or warpgroup
};

// A named barrier (bar.sync and bar.arrive with an id), which counts the threads it is given.
struct NamedBarrier {
  Wait at{};  // where the first thread arrived
  int expected = 0;
  std::vector<EmulatedThreadState*> arrived;
  std::vector<EmulatedThreadState*> waiting;  // those of `arrived` that wait
  VectorClock clock;
};

// A resident CTA.
struct EmulatedCta {
  EmulatedCta(int block, int num_threads, int ctas, std::size_t shared_bytes)
      : index(block),
        unfinished(num_threads),
        shared(shared_bytes, num_threads),
        threads(static_cast<std::size_t>(num_threads)),
        warps(static_cast<std::size_t>(num_threads / kEmulatedWarp)),
        warpgroups(static_cast<std::size_t>(num_threads / kEmulatedWarpgroup)),
        products(warps.size()) {
    for (int i = 0; i < num_threads; ++i) {
      threads[static_cast<std::size_t>(i)].kernel_view = {i, block, num_threads, ctas};
      threads[static_cast<std::size_t>(i)].cta = this;
    }
  }

  int index;
  int unfinished;  // threads that have not ended
  SharedMemory shared;
  std::vector<EmulatedThreadState> threads;
  std::vector<Rendezvous> warps;
  std::vector<Rendezvous> warpgroups;
  Rendezvous barrier;  // bar.sync 0
  std::array<NamedBarrier, kNamedBarriers> named_barriers;
  Mbarriers mbarriers;
  std::vector<WarpProducts> products;  // by warp
};

}  // namespace lazyrope
