#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <latch>
#include <stdexcept>
#include <thread>

#include "runtime/base/parallel.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

constexpr std::size_t kThreads = 4;

TEST(ForEachParallel, RunsEachJobOnce) {
  std::array<int, 100> runs = {};  // jobs write to it without a lock
  for_each_parallel(runs.size(), kThreads, [&](std::size_t i) { ++runs.at(i); });
  for (const int count : runs) EXPECT_EQ(count, 1);
}

TEST(ForEachParallel, OneOfSeveralFailuresAtOnceIsRethrownAndNoFurtherJobBegins) {
  std::latch all_began(kThreads);
  std::atomic<std::size_t> began = 0;
  const auto fail = [&](std::size_t) {
    ++began;
    all_began.arrive_and_wait();
    throw std::runtime_error("a job failed");
  };
  EXPECT_TRUE(throws<std::runtime_error>([&] { for_each_parallel(100, kThreads, fail); },
                                         {"a job failed"}));
  EXPECT_EQ(began, kThreads);
}

TEST(ForEachParallel, AFailureOfTheWatchStopsTheJobs) {
  const auto wait = [](std::size_t, const std::stop_token& stop) {
    while (!stop.stop_requested()) std::this_thread::yield();
  };
  const auto watch = [] { throw std::runtime_error("interrupted"); };
  EXPECT_TRUE(throws<std::runtime_error>([&] { for_each_parallel(100, kThreads, wait, watch); },
                                         {"interrupted"}));
}

}  // namespace
}  // namespace lazyrope
