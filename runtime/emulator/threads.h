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

// What a thread that cannot go on waits for.
struct Wait {
  const char* what;
  Site site;
  const Mbarrier* barrier = nullptr;  // where it is one
  int id = -1;                        // of a named barrier
};

struct EmulatedCta;

struct EmulatedThreadState {
  EmulatorThread kernel_view{};
  EmulatedCta* cta = nullptr;
  boost::context::fiber fiber;   // where to go on
  boost::context::fiber resume;  // back to the scheduler
  AsyncCopies copies;
  BulkStores stores;
  std::uint32_t init_fences = 0;  // that show its mbarriers to asynchronous copies
  bool was_rejected = false;      // by the latest mbarrier.try_wait
  std::optional<Violation> late;  // that could not be thrown where it was found
  std::optional<Wait> wait;       // none: it can go on
  bool finished = false;

  int lane() const { return kernel_view.thread % kEmulatedWarp; }
  int warp() const { return kernel_view.thread / kEmulatedWarp; }
};

// Threads that have come to an operation which all of a group make together.
struct Rendezvous {
  Wait at{};  // of the first to come
  std::vector<EmulatedThreadState*> threads;
  std::array<void*, kEmulatedWarpgroup> operands{};  // by lane, of a warp or warpgroup
};

// A barrier that is given how many threads it is of.
struct NamedBarrier {
  Wait at{};  // of the first to come
  int expected = 0;
  std::vector<EmulatedThreadState*> arrived;
  std::vector<EmulatedThreadState*> waiting;  // of those
  VectorClock clock;
};

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
  int unfinished;  // threads
  SharedMemory shared;
  std::vector<EmulatedThreadState> threads;
  std::vector<Rendezvous> warps;
  std::vector<Rendezvous> warpgroups;
  Rendezvous barrier;
  std::array<NamedBarrier, kNamedBarriers> named_barriers;
  Mbarriers mbarriers;
  std::vector<WarpProducts> products;  // by warp
};

}  // namespace lazyrope
