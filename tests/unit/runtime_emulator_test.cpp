#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <stdexcept>
#include <vector>

#include "runtime/emulator/fault.h"
#include "runtime/emulator/launch.h"
#include "templates/isa/emu/async_copy.cuh"
#include "templates/isa/emu/sync.cuh"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

constexpr int kThreads = 64;
constexpr int kSharedBytes = 1024;

// The kernel of the test that runs. A launch takes a plain function pointer, which calls this.
std::function<void()> body;

void run(std::function<void()> kernel, int ctas = 1, std::vector<MemoryRange> memory = {},
         std::uint64_t seed = 0) {
  body = std::move(kernel);
  const EmulatedLaunch launch = {"kernel",
                                 [](const void*) { body(); },
                                 [](EmulatorHost* host) { emulator = host; },
                                 ctas,
                                 kThreads,
                                 kSharedBytes};
  run_emulated(launch, nullptr, std::move(memory), {.seed = seed});
}

SharedPtr word(int index) { return dynamic_shared_memory() + 4 * index; }

TEST(Emulator, RunsEveryThreadOfEveryCta) {
  std::vector<int> seen(40 * kThreads);
  run(
      [&] {
        EXPECT_EQ(block_threads(), kThreads);
        EXPECT_EQ(grid_blocks(), 40);
        ++seen[static_cast<std::size_t>(block_index() * kThreads + thread_index())];
      },
      40);
  EXPECT_EQ(seen, std::vector<int>(seen.size(), 1));
}

TEST(Emulator, SeedDecidesTheOrderOfThreads) {
  const auto order = [](std::uint64_t seed) {
    std::vector<int> threads;
    run([&] { threads.push_back(block_index() * kThreads + thread_index()); }, 4, {}, seed);
    return threads;
  };
  EXPECT_EQ(order(7), order(7));
  EXPECT_NE(order(7), order(8));
}

// Several CTAs are resident at a time, so their threads are interleaved as on a GPU.
TEST(Emulator, CtasRunInterleaved) {
  std::vector<int> order;
  run(
      [&] {
        bar_sync();
        order.push_back(block_index());
        bar_sync();
      },
      4);
  EXPECT_FALSE(std::ranges::is_sorted(order));
}

TEST(Emulator, EachCtaHasItsOwnSharedMemory) {
  run(
      [] {
        st_shared(word(thread_index()), block_index());
        bar_sync();
        EXPECT_EQ(ld_shared<int>(word(kThreads - 1 - thread_index())), block_index());
      },
      2);
}

TEST(Emulator, BarrierMakesAllThreadsWait) {
  run([] {
    for (int round = 1; round <= 3; ++round) {
      st_shared(word(thread_index()), round * thread_index());
      bar_sync();
      const int other = kThreads - 1 - thread_index();
      EXPECT_EQ(ld_shared<int>(word(other)), round * other);
      bar_sync();
    }
  });
}

TEST(Emulator, WarpOperationSeesItsOwnLanes) {
  run([] {
    EXPECT_EQ(vote_sync_ballot(thread_index() == 3 || thread_index() == 40),
              thread_index() < 32 ? 8U : 256U);
    EXPECT_EQ(shfl_sync_idx(thread_index(), 5), warp_index() * 32 + 5);
    EXPECT_EQ(shfl_sync_bfly(thread_index(), 3), thread_index() ^ 3);
    EXPECT_EQ(shfl_sync_up(std::int64_t{thread_index()} << 33, 2),
              std::int64_t{lane_index() < 2 ? thread_index() : thread_index() - 2} << 33);
  });
}

TEST(Emulator, FaultNamesTheThreadAndTheLine) {
  const auto kernel = [] {
    if (block_index() == 1 && thread_index() == 35) st_shared(word(256), 1);
  };
  EXPECT_TRUE(throws<KernelFault>(
      [&] { run(kernel, 2); },
      {"shared access out of bounds: 4 bytes at 1024; the CTA has 1024 bytes of shared memory",
       "runtime_emulator_test.cpp:", ", kernel, block 1, warp 1, lane 3 (thread 35)"}));
}

TEST(Emulator, GlobalFaultNamesTheNearestMemory) {
  std::vector<int> given(4);
  const auto kernel = [&] { ld_global(given.data() + 5); };
  EXPECT_TRUE(throws<KernelFault>(
      [&] { run(kernel, 1, {{"pages", given.data(), 16, false}}); },
      {"global access out of bounds", "nearest memory of the launch is pages (16 bytes)",
       "this is at offset 20"}));
  EXPECT_TRUE(throws<KernelFault>([&] { run(kernel); }, {"the launch was given no memory"}));
}

TEST(Emulator, DivergenceFaultNamesBothOperations) {
  const auto kernel = [] {
    if (thread_index() == 35)
      vote_sync_any(true);
    else if (thread_index() > 31)
      bar_warp_sync();
  };
  EXPECT_TRUE(throws<KernelFault>(
      [&] { run(kernel); }, {"lanes disagree on a collective", "bar.warp.sync", "vote.sync"}));
}

TEST(Emulator, DeadlockNamesBarriersAndWaitingThreads) {
  const auto kernel = [] {
    if (thread_index() == 2) return;
    if (thread_index() < 32)
      bar_sync();
    else if (thread_index() != 40)
      shfl_sync_idx(0, 0);
  };
  EXPECT_TRUE(throws<KernelFault>(
      [&] { run(kernel); },
      {"deadlock: no thread of kernel can continue",
       "block 0: threads 0-1, 3-31 wait in bar.sync 0 at",
       "block 0: threads 32-39, 41-63 wait in shfl.sync.idx at", "block 0: 2 threads have ended"}));
}

TEST(Emulator, RunsOtherLaunchesAfterAFailure) {
  const auto fails = [] {
    if (thread_index() == 7) throw std::out_of_range("of thread 7");
    bar_sync();
  };
  EXPECT_TRUE(throws<std::out_of_range>([&] { run(fails); }, {"of thread 7"}));
  EXPECT_NO_THROW(run([] { bar_sync(); }));
}

// Two groups of one copy each. The first copy reads two words and fills two with zeros.
TEST(Emulator, AsyncCopiesLandGroupByGroup) {
  alignas(16) const int from[] = {11, 12, 13, 14, 15};
  const auto kernel = [&] {
    if (thread_index() != 0) return;
    cp_async_cg_16<true>(word(0), from, 8);
    cp_async_commit_group();
    cp_async_ca_4(word(4), from + 4);
    cp_async_commit_group();
    cp_async_wait_group<1>();
    EXPECT_EQ(ld_shared<int>(word(1)), 12);
    EXPECT_EQ(ld_shared<int>(word(2)), 0) << "bytes beyond the copied ones become zero";
    cp_async_wait_group<0>();
    EXPECT_EQ(ld_shared<int>(word(4)), 15);
  };
  run(kernel, 1, {{"from", from, sizeof from, false}});
}

}  // namespace
}  // namespace lazyrope
