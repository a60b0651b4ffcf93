// These tests use one key from several threads and processes.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cache/disk_store.h"
#include "cache/file_lock.h"
#include "tests/support/temporary_directory.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// Forks a child that runs `body`. Its exit status is 0 if `body` returns true.
pid_t start(const auto& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  return child;
}

int wait_for(pid_t child) {
  int status = -1;
  EXPECT_EQ(::waitpid(child, &status, 0), child);
  return status;
}

void expect_all_succeed(const std::vector<pid_t>& children) {
  for (const pid_t child : children) EXPECT_EQ(wait_for(child), 0);
}

class CacheLockTest : public ::testing::Test {
 protected:
  DiskStore store() const { return DiskStore(root_); }
  fs::path lock_path() const { return root_ / (key_.hex() + ".lock"); }
  fs::path claim_path() const { return root_ / (key_.hex() + ".claim"); }

  // Starts a child that holds the lock until it is killed.
  pid_t start_holder() const {
    const pid_t holder = start([&] {
      const FileLock lock = store().lock(key_, 1s);
      std::ofstream(root_ / "ready") << "";
      std::this_thread::sleep_for(60s);
      return lock.is_held();
    });
    while (!fs::exists(root_ / "ready")) std::this_thread::sleep_for(1ms);
    return holder;
  }

  const TemporaryDirectory directory_;
  const fs::path root_ = directory_.path();
  const Key key_ = KeyBuilder().field("arch", "sm_90a").finish();
};

// Ctrl-C in Python throws in the same way.
TEST_F(CacheLockTest, AnExceptionInAPauseEndsTheWait) {
  const FileLock held = store().lock(key_, 0ms);
  int pauses = 0;
  const auto begin = Clock::now();
  EXPECT_THROW((void)store().lock(key_, 60s,
                                  [&](const LockWait&) {
                                    if (++pauses == 2) throw std::runtime_error("interrupted");
                                  }),
               std::runtime_error);
  EXPECT_EQ(pauses, 2);
  EXPECT_LT(Clock::now() - begin, 30s);
  EXPECT_TRUE(held.is_held());
}

TEST_F(CacheLockTest, IsHeldByOneAtATime) {
  {
    const FileLock lock = store().lock(key_, 0ms);
    EXPECT_TRUE(lock.is_held());
    EXPECT_EQ(lock.reason(), "");
    const FileLock second = store().lock(key_, 0ms);
    EXPECT_FALSE(second.is_held());
    EXPECT_EQ(second.reason(), lock_path().native() + " is still held after 0 ms");
    EXPECT_TRUE(store().lock(KeyBuilder().field("arch", "sm_80").finish(), 0ms).is_held());
  }
  EXPECT_TRUE(store().lock(key_, 0ms).is_held());
  EXPECT_TRUE(fs::is_empty(root_));
}

TEST_F(CacheLockTest, AMovedLockStaysHeld) {
  FileLock lock = store().lock(key_, 0ms);
  {
    const FileLock moved = std::move(lock);
    EXPECT_TRUE(moved.is_held());
    EXPECT_FALSE(store().lock(key_, 0ms).is_held());
  }
  EXPECT_TRUE(store().lock(key_, 0ms).is_held());
}

TEST_F(CacheLockTest, AfterTheTimeoutOneAtATimeGoesOnByAClaim) {
  const FileLock lock = store().lock(key_, 0ms);
  const auto start_time = Clock::now();
  std::optional<FileLock> first = store().lock(key_, 100ms);
  EXPECT_GE(Clock::now() - start_time, 100ms);
  EXPECT_LT(Clock::now() - start_time, 5s);
  EXPECT_TRUE(first->is_held());
  EXPECT_EQ(first->reason(), lock_path().native() + " is still held after 100 ms");
  auto second = std::async(std::launch::async, [&] {
    const FileLock claim = store().lock(key_, 200ms);
    EXPECT_TRUE(claim.is_held());
    return Clock::now();
  });
  EXPECT_EQ(second.wait_for(300ms), std::future_status::timeout);
  const auto released = Clock::now();
  first.reset();
  EXPECT_GE(second.get(), released);
  EXPECT_FALSE(fs::exists(claim_path()));
}

TEST_F(CacheLockTest, APauseIsToldOfTheFileAndTheTime) {
  const FileLock held = store().lock(key_, 0ms);
  std::vector<fs::path> paths;
  std::chrono::milliseconds longest{0};
  const FileLock claim = store().lock(key_, 50ms, [&](const LockWait& wait) {
    paths.push_back(wait.path);
    longest = std::max(longest, wait.waited);
  });
  ASSERT_FALSE(paths.empty());
  EXPECT_EQ(paths.front(), lock_path());
  EXPECT_GE(longest, 20ms);
  EXPECT_LE(longest, 50ms);
}

// flock() of a file system that has none.
int no_flock(int, int) {
  errno = ENOLCK;
  return -1;
}

TEST_F(CacheLockTest, WithoutFlockOneProcessCompilesForAll) {
  const DiskStore shared(root_, {}, no_flock);
  const fs::path compiles = root_ / "compiles";
  std::vector<pid_t> children;
  for (int i = 0; i < 16; ++i) {
    children.push_back(start([&] {
      const FileLock lock = shared.lock(key_, 60s);
      if (!lock.is_held() || lock.reason().find("No locks available") == std::string::npos)
        return false;
      if (shared.load(key_).entry) return true;
      std::ofstream(compiles, std::ios::app) << 'x';
      std::this_thread::sleep_for(100ms);
      return shared.store(key_, Entry{{}, std::vector<std::byte>(5000)}).stored;
    }));
  }
  expect_all_succeed(children);
  EXPECT_EQ(fs::file_size(compiles), 1u);
  EXPECT_FALSE(fs::exists(lock_path()));
  EXPECT_FALSE(fs::exists(claim_path()));
}

TEST_F(CacheLockTest, AClaimOfADeadProcessIsTakenOverAtOnce) {
  const DiskStore shared(root_, {}, no_flock);
  wait_for(start([&] {
    const FileLock lock = shared.lock(key_, 60s);
    ::_exit(0);
    return lock.is_held();
  }));
  ASSERT_TRUE(fs::exists(claim_path()));
  const auto begin = Clock::now();
  EXPECT_TRUE(shared.lock(key_, 60s).is_held());
  EXPECT_LT(Clock::now() - begin, 5s);
  EXPECT_FALSE(fs::exists(claim_path()));
}

TEST_F(CacheLockTest, AnOldClaimOfAnotherHostIsTakenOver) {
  const DiskStore shared(root_, {}, no_flock);
  std::ofstream(claim_path()) << "1 elsewhere pid:[1]\n";
  const auto begin = Clock::now();
  EXPECT_TRUE(shared.lock(key_, 200ms).is_held());
  EXPECT_GE(Clock::now() - begin, 200ms);
  EXPECT_LT(Clock::now() - begin, 5s);
}

TEST_F(CacheLockTest, ClaimsThatAreLeftOverAreCleared) {
  std::ofstream(claim_path()) << "1 elsewhere pid:[1]\n";
  store().prune(1 << 20);
  EXPECT_TRUE(fs::exists(claim_path()));
  fs::last_write_time(claim_path(), fs::file_time_type::clock::now() - 2h);
  store().prune(1 << 20);
  EXPECT_FALSE(fs::exists(claim_path()));
}

TEST_F(CacheLockTest, AChildDoesNotRemoveTheLockThatItInherits) {
  std::optional<FileLock> lock = store().lock(key_, 0ms);
  EXPECT_EQ(wait_for(start([&] {
              lock.reset();
              return true;
            })),
            0);
  EXPECT_TRUE(fs::exists(lock_path()));
}

TEST_F(CacheLockTest, LockMakesTheDirectory) {
  const DiskStore deep(root_ / "a" / "b");
  EXPECT_TRUE(deep.lock(key_, 0ms).is_held());
}

TEST_F(CacheLockTest, ALockThatCannotBeHadGivesTheReason) {
  const fs::path path = root_ / "absent" / "x.lock";
  const FileLock lock = FileLock::acquire(path, 1s);
  EXPECT_FALSE(lock.is_held());
  EXPECT_EQ(lock.reason(), "cannot open " + path.native() + ": No such file or directory");
}

TEST_F(CacheLockTest, ThreadsExcludeEachOther) {
  int counter = 0;
  std::atomic<int> inside = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 50; ++i) {
        const FileLock lock = store().lock(key_, 60s);
        ASSERT_TRUE(lock.is_held()) << lock.reason();
        EXPECT_EQ(++inside, 1);
        ++counter;
        --inside;
      }
    });
  }
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(counter, 200);
}

// Every release removes the lock file, even while a third process opens it. Two processes with
// locks on two files of the same name would lose counts.
TEST_F(CacheLockTest, ProcessesExcludeEachOther) {
  constexpr int kProcesses = 6;
  constexpr int kRounds = 60;
  const fs::path counter = root_ / "counter";
  std::ofstream(counter) << 0;
  std::vector<pid_t> children;
  for (int p = 0; p < kProcesses; ++p) {
    children.push_back(start([&] {
      for (int i = 0; i < kRounds; ++i) {
        const FileLock lock = store().lock(key_, 60s);
        if (!lock.is_held()) return false;
        int count = -1;
        std::ifstream(counter) >> count;
        std::this_thread::yield();
        std::ofstream(counter) << count + 1;
      }
      return true;
    }));
  }
  const pid_t pruner = start([&] {
    while (true) store().prune(1 << 20);
    return true;
  });
  expect_all_succeed(children);
  ::kill(pruner, SIGKILL);
  wait_for(pruner);
  int count = 0;
  std::ifstream(counter) >> count;
  EXPECT_EQ(count, kProcesses * kRounds);
}

TEST_F(CacheLockTest, AKilledHolderReleasesTheLock) {
  const pid_t holder = start_holder();
  EXPECT_FALSE(store().lock(key_, 0ms).is_held());
  ::kill(holder, SIGKILL);
  wait_for(holder);
  EXPECT_TRUE(fs::exists(lock_path()));
  EXPECT_TRUE(store().lock(key_, 1s).is_held());
  EXPECT_FALSE(fs::exists(lock_path()));
}

// The child inherits the descriptor, and with it the lock on the removed file.
TEST_F(CacheLockTest, AChildForkedMeanwhileDoesNotHoldTheLock) {
  std::optional<FileLock> lock = store().lock(key_, 0ms);
  const pid_t child = start([] {
    std::this_thread::sleep_for(60s);
    return true;
  });
  auto waiter = std::async(std::launch::async, [&] { return store().lock(key_, 10s).is_held(); });
  std::this_thread::sleep_for(50ms);
  lock.reset();
  EXPECT_TRUE(waiter.get());
  EXPECT_TRUE(store().lock(key_, 0ms).is_held());
  ::kill(child, SIGKILL);
  wait_for(child);
}

TEST_F(CacheLockTest, OneProcessCompilesForAll) {
  const fs::path compiles = root_ / "compiles";
  const auto compile_once = [&] {
    if (store().load(key_).entry) return true;
    const FileLock lock = store().lock(key_, 60s);
    if (store().load(key_).entry) return lock.is_held();
    std::ofstream(compiles, std::ios::app) << 'x';
    std::this_thread::sleep_for(50ms);
    return lock.is_held() && store().store(key_, Entry{{}, std::vector<std::byte>(5000)}).stored;
  };
  std::vector<pid_t> children;
  for (int i = 0; i < 8; ++i) children.push_back(start(compile_once));
  expect_all_succeed(children);
  EXPECT_EQ(fs::file_size(compiles), 1u);
  EXPECT_EQ(store().load(key_).entry->payload.size(), 5000u);
}

Entry entry_of_writer(int writer) {
  const auto size = 10'000 + 30'000 * static_cast<std::size_t>(writer);
  return {std::to_string(writer), std::vector<std::byte>(size, std::byte(writer))};
}

bool is_one_whole_entry(const Entry& entry) {
  return entry.payload == entry_of_writer(std::stoi(entry.facts)).payload;
}

TEST_F(CacheLockTest, ReadersNeverSeeHalfAnEntry) {
  ASSERT_TRUE(store().store(key_, entry_of_writer(0)).stored);
  const auto end = Clock::now() + 1s;
  std::vector<pid_t> children;
  for (int writer = 1; writer <= 4; ++writer) {
    children.push_back(start([&] {
      const Entry entry = entry_of_writer(writer);
      while (Clock::now() < end) {
        if (!store().store(key_, entry).stored) return false;
      }
      return true;
    }));
    children.push_back(start([&] {
      for (int reads = 0; Clock::now() < end || reads <= 10; ++reads) {
        const LoadResult result = store().load(key_);
        if (!result.entry || !is_one_whole_entry(*result.entry)) return false;
      }
      return true;
    }));
  }
  expect_all_succeed(children);
  EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 1);
}

TEST_F(CacheLockTest, AKilledWriterLeavesNoWrongEntry) {
  ASSERT_TRUE(store().store(key_, entry_of_writer(0)).stored);
  for (int i = 0; i < 30; ++i) {
    const pid_t writer = start([&] {
      for (int w = 1;; w = w % 4 + 1) store().store(key_, entry_of_writer(w));
      return true;
    });
    std::this_thread::sleep_for(std::chrono::microseconds(3000 + 371 * i));
    ::kill(writer, SIGKILL);
    wait_for(writer);
    const LoadResult result = store().load(key_);
    ASSERT_TRUE(result.entry.has_value()) << result.miss_reason;
    EXPECT_TRUE(is_one_whole_entry(*result.entry));
  }
  EXPECT_EQ(store().list().size(), 1u);
  EXPECT_EQ(store().clear().entries(), 1u);
  EXPECT_TRUE(fs::is_empty(root_));
}

}  // namespace
}  // namespace lazyrope
