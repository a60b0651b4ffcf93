#pragma once

#include <array>
#include <boost/context/fiber.hpp>
#include <cstddef>
#include <optional>
#include <vector>

#include "runtime/emulator/async_copies.h"
#include "runtime/emulator/shared_memory.h"

namespace lazyrope {

inline constexpr int kEmulatedWarp = 32;

// What a thread that cannot go on waits for.
struct Wait {
  const char* what;
  Site site;
};

struct EmulatedCta;

struct EmulatedThreadState {
  EmulatorThread place{};
  EmulatedCta* cta = nullptr;
  boost::context::fiber fiber;   // where to go on
  boost::context::fiber resume;  // back to the scheduler
  AsyncCopies copies;
  std::optional<Wait> wait;  // none: it can go on
  bool finished = false;

  int lane() const { return place.thread % kEmulatedWarp; }
  int warp() const { return place.thread / kEmulatedWarp; }
};

// Threads that have come to an operation which all of a group make together.
struct Rendezvous {
  Wait at{};  // of the first to come
  std::vector<EmulatedThreadState*> threads;
  std::array<void*, kEmulatedWarp> operands{};  // by lane, where the group is a warp
};

struct EmulatedCta {
  EmulatedCta(int block, int num_threads, int ctas, std::size_t shared_bytes)
      : index(block),
        unfinished(num_threads),
        shared(shared_bytes),
        threads(static_cast<std::size_t>(num_threads)),
        warps(static_cast<std::size_t>(num_threads / kEmulatedWarp)) {
    for (int i = 0; i < num_threads; ++i) {
      threads[static_cast<std::size_t>(i)].place = {i, block, num_threads, ctas};
      threads[static_cast<std::size_t>(i)].cta = this;
    }
  }

  int index;
  int unfinished;  // threads
  SharedMemory shared;
  std::vector<EmulatedThreadState> threads;
  std::vector<Rendezvous> warps;
  Rendezvous barrier;
};

}  // namespace lazyrope
