#include <gtest/gtest.h>

#include <stdexcept>
#include <vector>

#include "runtime/emulator.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

constexpr int kThreads = 64;

// Kernels written as the emulated isa writes them: plain functions that reach their host by a
// global.
EmulatorHost* host = nullptr;

void bind(EmulatorHost* bound) { host = bound; }

void run(EmulatedKernel kernel, void* params = nullptr, int ctas = 1) {
  run_emulated({kernel, bind, ctas, kThreads, /*shared_bytes=*/1024}, params);
}

int thread() { return host->thread->thread; }
int* shared() { return reinterpret_cast<int*>(host->shared_memory); }

void nothing(void* const*) {}

TEST(Emulator, RunsEveryThreadOfEveryBlock) {
  std::vector<int> seen(3 * kThreads);
  run(
      [](const void* params) {
        const EmulatorThread& place = *host->thread;
        EXPECT_EQ(place.block_threads, kThreads);
        EXPECT_EQ(place.grid_blocks, 3);
        auto& counts = **static_cast<std::vector<int>* const*>(params);
        ++counts[static_cast<std::size_t>(place.block * kThreads + place.thread)];
      },
      std::vector<void*>{&seen}.data(), 3);
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
}

TEST(Emulator, SharedMemoryIsTheBlocksOwn) {
  run(
      [](const void*) {
        EXPECT_EQ(shared()[thread()], 0);
        shared()[thread()] = 1;
      },
      nullptr, 2);
}

TEST(Emulator, ABarrierMakesAllThreadsWaitForAll) {
  run([](const void*) {
    for (int round = 1; round <= 3; ++round) {
      shared()[thread()] = round * thread();
      host->cta_barrier();
      EXPECT_EQ(shared()[kThreads - 1 - thread()], round * (kThreads - 1 - thread()));
      host->cta_barrier();
    }
  });
}

TEST(Emulator, AWarpOperationSeesItsOwnLanes) {
  run([](const void*) {
    int value = thread();
    host->warp_operation(
        "sum",
        [](void* const* lanes) {
          int sum = 0;
          for (int i = 0; i < 32; ++i) sum += *static_cast<int*>(lanes[i]);
          for (int i = 0; i < 32; ++i) *static_cast<int*>(lanes[i]) = sum;
        },
        &value);
    EXPECT_EQ(value, thread() < 32 ? 496 : 496 + 32 * 32);
  });
}

TEST(Emulator, LanesAtDifferentOperationsAreNamed) {
  const auto kernel = [](const void*) {
    host->warp_operation(thread() == 35 ? "vote" : "mma", nothing, nullptr);
  };
  EXPECT_TRUE(throws<std::runtime_error>([&] { run(kernel); },
                                         {"block 0 warp 1: lane 3 is at vote, others are at mma"}));
}

TEST(Emulator, ABarrierThatNotAllReachIsADeadlock) {
  const auto kernel = [](const void*) {
    if (thread() >= 2) return;
    host->cta_barrier();
  };
  EXPECT_TRUE(throws<std::runtime_error>(
      [&] { run(kernel); },
      {"block 0: no thread can go on; waiting are (thread:for) 0:bar.sync 1:bar.sync"}));
}

TEST(Emulator, AWarpOperationThatALaneLeavesOutIsADeadlock) {
  const auto kernel = [](const void*) {
    if (thread() != 40) host->warp_operation("shfl.idx", nothing, nullptr);
  };
  EXPECT_TRUE(throws<std::runtime_error>([&] { run(kernel); },
                                         {"no thread can go on", " 32:shfl.idx", " 63:shfl.idx"}));
}

TEST(Emulator, GoesOnWithOtherLaunchesAfterAFailure) {
  const auto fails = [](const void*) {
    if (thread() == 7) throw std::out_of_range("of thread 7");
    host->cta_barrier();
  };
  EXPECT_TRUE(throws<std::out_of_range>([&] { run(fails); }, {"of thread 7"}));
  EXPECT_NO_THROW(run([](const void*) { host->cta_barrier(); }));
}

// Three ints, of which one is filled with zero, in two groups.
TEST(Emulator, AsyncCopiesAreSeenOnlyOnceTheyAreWaitedFor) {
  run([](const void*) {
    if (thread() != 0) return;
    const int from[] = {11, 12};
    shared()[1] = -1;
    host->async_copy(0, &from[0], 8, 4);
    host->async_commit();
    host->async_copy(8, &from[1], 4, 4);
    host->async_commit();
    EXPECT_EQ(shared()[0], 0);
    host->async_wait(2);
    EXPECT_EQ(shared()[0], 0);
    host->async_wait(1);
    EXPECT_EQ(shared()[0], 11);
    EXPECT_EQ(shared()[1], 0) << "bytes beyond what is copied become zero";
    EXPECT_EQ(shared()[2], 0) << "the second group was not waited for";
    host->async_wait(0);
    EXPECT_EQ(shared()[2], 12);
  });
}

TEST(Emulator, AnAsyncCopyThatIsNotCommittedIsNotWaitedFor) {
  run([](const void*) {
    if (thread() != 0) return;
    const int from = 11;
    host->async_copy(0, &from, 4, 4);
    host->async_wait(0);
    EXPECT_EQ(shared()[0], 0);
  });
}

}  // namespace
}  // namespace lazyrope
