#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <latch>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <vector>

#include "runtime/base/fork.h"
#include "runtime/base/log.h"

namespace lazyrope {
namespace {

// Returns whether `body` returns true in a child. SIGALRM ends a child that hangs.
bool is_true_in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(10);
    ::_exit(body() ? 0 : 1);
  }
  int status = -1;
  ::waitpid(child, &status, 0);
  return status == 0;
}

TEST(Fork, EachChildCountsOneForkMore) {
  const std::uint32_t here = fork_count();
  EXPECT_TRUE(is_true_in_child([&] {
    return fork_count() == here + 1 && is_true_in_child([&] { return fork_count() == here + 2; });
  }));
  EXPECT_EQ(fork_count(), here);
}

TEST(ForkMutex, IsHeldByOneThreadAtATime) {
  ForkMutex mutex;
  int counter = 0;
  {
    std::vector<std::jthread> threads;
    for (int t = 0; t < 4; ++t)
      threads.emplace_back([&] {
        for (int i = 0; i < 10000; ++i) {
          const std::lock_guard lock(mutex);
          ++counter;
        }
      });
  }
  EXPECT_EQ(counter, 40000);
  const std::lock_guard lock(mutex);
  EXPECT_FALSE(mutex.try_lock());
}

TEST(ForkMutex, IsFreeInAChildThoughAThreadOfTheParentHoldsIt) {
  ForkMutex mutex;
  std::latch locked(1), done(1);
  std::jthread holds([&] {
    const std::lock_guard lock(mutex);
    locked.count_down();
    done.wait();
  });
  locked.wait();
  EXPECT_TRUE(is_true_in_child([&] {
    const std::lock_guard lock(mutex);
    return !mutex.try_lock();
  }));
  EXPECT_FALSE(mutex.try_lock());
  done.count_down();
}

TEST(Lazy, AChildMakesTheValueThatAThreadOfTheParentIsMaking) {
  std::latch begun(1), done(1);
  const std::uint32_t here = fork_count();
  Lazy<int> value([&] {
    if (fork_count() == here) {
      begun.count_down();
      done.wait();
    }
    return std::make_unique<int>(7);
  });
  std::jthread makes([&] { value.get(); });
  begun.wait();
  EXPECT_TRUE(is_true_in_child([&] { return value.get() == 7; }));
  done.count_down();
  EXPECT_EQ(value.get(), 7);
}

TEST(Lazy, IsMadeOnceAndSharedWithChildrenAndPerProcessIsNot) {
  int made = 0;
  const auto make = [&] { return std::make_unique<int>(++made); };
  Lazy<int> shared(make);
  PerProcess<int> own(make);
  EXPECT_EQ(shared.get(), 1);
  EXPECT_EQ(own.get(), 2);
  EXPECT_TRUE(is_true_in_child([&] { return shared.get() == 1 && own.get() == 3; }));
  EXPECT_EQ(shared.get() + own.get(), 3);
}

TEST(Lazy, AFailureIsTriedAgain) {
  bool fails = true;
  Lazy<int> value([&] {
    if (fails) throw std::runtime_error("not yet");
    return std::make_unique<int>(1);
  });
  EXPECT_THROW(value.get(), std::runtime_error);
  fails = false;
  EXPECT_EQ(value.get(), 1);
}

// Threads change the sink and log without a pause, so some forks come while they hold its lock.
TEST(ForkedLog, ChildrenLogThoughThreadsOfTheParentLog) {
  set_log_sink([](LogLevel, std::string_view) {});
  std::atomic<bool> done = false;
  std::vector<std::jthread> threads;
  for (int t = 0; t < 3; ++t)
    threads.emplace_back([&] {
      while (!done) set_log_sink([](LogLevel, std::string_view) {});
    });
  int succeeded = 0;
  for (int i = 0; i < 50; ++i)
    succeeded += is_true_in_child([] {
      write_log(LogLevel::kWarning, "from a child");
      return true;
    });
  done = true;
  threads.clear();
  set_log_sink(nullptr);
  EXPECT_EQ(succeeded, 50);
}

}  // namespace
}  // namespace lazyrope
