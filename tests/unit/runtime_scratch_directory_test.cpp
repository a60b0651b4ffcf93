#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>

#include "runtime/emulator/scratch_directory.h"
#include "tests/support/temporary_directory.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class ScratchDirectoryTest : public ::testing::Test {
 protected:
  fs::path make(const std::string& name, std::chrono::seconds age) const {
    const fs::path path = directory_ / name;
    fs::create_directory(path);
    std::ofstream(path / "kernel.cpp") << "text";
    set_age(path, age);
    return path;
  }

  static void set_age(const fs::path& path, std::chrono::seconds age) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - age);
  }

  const TemporaryDirectory directory_;
};

TEST_F(ScratchDirectoryTest, NamesItsProcessAndRemovesItself) {
  fs::path path;
  {
    const ScratchDirectory scratch;
    path = scratch.path();
    std::ofstream(scratch.file("kernel.cpp")) << "text";
    EXPECT_TRUE(path.filename().native().starts_with(fmt::format("lazyrope-{}-", ::getpid())));
  }
  EXPECT_FALSE(fs::exists(path));
}

TEST_F(ScratchDirectoryTest, StaleDirectoriesAreRemoved) {
  const fs::path old = make("lazyrope-12-abcDEF", 2h);
  const fs::path future = make("lazyrope-13-abcDEF", -2h);
  const fs::path young = make("lazyrope-14-abcDEF", 5s);
  const fs::path others[] = {make("lazyrope-x-abcDEF", 2h), make("lazyrope-12-abc", 2h),
                             make("lazyrope--abcDEF", 2h), make("lazyrope-12", 2h)};
  fs::create_directory_symlink(others[0], directory_ / "lazyrope-15-abcDEF");
  remove_stale_scratch(directory_.path());
  EXPECT_FALSE(fs::exists(old));
  EXPECT_FALSE(fs::exists(future));
  EXPECT_TRUE(fs::exists(young));
  for (const fs::path& other : others) EXPECT_TRUE(fs::exists(other / "kernel.cpp")) << other;
}

// The child is killed, as an impatient user kills a long compilation.
TEST_F(ScratchDirectoryTest, OnlyTheDirectoriesOfDeadProcessesAreRemoved) {
  const fs::path ready = directory_ / "ready";
  const pid_t child = ::fork();
  if (child == 0) {
    ::setenv("TMPDIR", directory_.path().c_str(), 1);
    const ScratchDirectory scratch;
    set_age(scratch.path(), 2h);
    std::ofstream(directory_ / "writing") << scratch.path().native();
    fs::rename(directory_ / "writing", ready);
    while (true) ::pause();
  }
  while (!fs::exists(ready)) ::usleep(1000);
  std::string path;
  std::ifstream(ready) >> path;
  remove_stale_scratch(directory_.path());
  EXPECT_TRUE(fs::exists(path)) << "its process lives";
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  remove_stale_scratch(directory_.path());
  EXPECT_FALSE(fs::exists(path));
}

}  // namespace
}  // namespace lazyrope
