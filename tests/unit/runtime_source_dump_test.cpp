// LAZYROPE_DUMP_DIR may be a folder that other users can write.
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include "runtime/engine/source_dump.h"
#include "tests/support/temporary_directory.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

std::string text_of(const fs::path& path) {
  std::ifstream in(path);
  return {std::istreambuf_iterator<char>(in), {}};
}

class SourceDumpTest : public ::testing::Test {
 protected:
  const TemporaryDirectory directory_;
  const fs::path path_ = directory_ / "kernel.cu";

  void dump(const std::string& source) const {
    dump_source(directory_.path().string(), path_.filename().string(), source);
  }
};

TEST_F(SourceDumpTest, ReplacesAnEarlierSource) {
  dump("first, and longer");
  dump("second");
  EXPECT_EQ(text_of(path_), "second");
}

TEST_F(SourceDumpTest, ReplacesALinkAndLeavesItsTarget) {
  const fs::path victim = directory_ / "victim";
  std::ofstream(victim) << "precious";
  fs::create_symlink(victim, path_);
  dump("source");
  EXPECT_EQ(text_of(victim), "precious");
  EXPECT_FALSE(fs::is_symlink(path_));
  EXPECT_EQ(text_of(path_), "source");
}

// Opening a FIFO for writing waits for a reader.
TEST_F(SourceDumpTest, ReplacesAFifoWithoutWaiting) {
  ASSERT_EQ(::mkfifo(path_.c_str(), 0600), 0);
  dump("source");
  EXPECT_EQ(text_of(path_), "source");
}

TEST_F(SourceDumpTest, MakesTheDirectory) {
  dump_source((directory_ / "a" / "b").string(), "kernel.cu", "source");
  EXPECT_EQ(text_of(directory_ / "a" / "b" / "kernel.cu"), "source");
}

}  // namespace
}  // namespace lazyrope
