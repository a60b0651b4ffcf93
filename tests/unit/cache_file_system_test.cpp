// These tests run the cache on file systems that fail: full ones, stale ones, and those without
// modes or fsync. This program's own definitions of some system calls stand in for them.
#include <dlfcn.h>
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string>

#include "cache/disk_store.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

// The errno with which a call fails. Zero: the call works. Only calls for regular files fail.
struct FailingCall {
  std::atomic<int> error = 0;

  bool fails(int fd) const {
    struct stat status = {};
    if (error == 0 || ::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return false;
    errno = error;
    return true;
  }
};

FailingCall failing_read;
FailingCall failing_write;
FailingCall failing_fsync;
FailingCall failing_fchmod;
std::atomic<bool> modes_are_forced = false;

template <class Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(::dlsym(RTLD_NEXT, name));
}

}  // namespace

// The labels give these functions the names of the C library's, for this whole program.
extern "C" {
ssize_t lazyrope_test_read(int fd, void* data, size_t size) asm("read");
ssize_t lazyrope_test_write(int fd, const void* data, size_t size) asm("write");
int lazyrope_test_fsync(int fd) asm("fsync");
int lazyrope_test_fchmod(int fd, mode_t mode) asm("fchmod");

ssize_t lazyrope_test_read(int fd, void* data, size_t size) {
  static const auto real = next<ssize_t(int, void*, size_t)>("read");
  return failing_read.fails(fd) ? -1 : real(fd, data, size);
}
ssize_t lazyrope_test_write(int fd, const void* data, size_t size) {
  static const auto real = next<ssize_t(int, const void*, size_t)>("write");
  return failing_write.fails(fd) ? -1 : real(fd, data, size);
}
int lazyrope_test_fsync(int fd) {
  static const auto real = next<int(int)>("fsync");
  return failing_fsync.fails(fd) ? -1 : real(fd);
}
int lazyrope_test_fchmod(int fd, mode_t mode) {
  static const auto real = next<int(int, mode_t)>("fchmod");
  return failing_fchmod.fails(fd) ? -1 : real(fd, modes_are_forced ? 0777 : mode);
}
}

namespace {

namespace fs = std::filesystem;

class CacheFileSystemTest : public ::testing::Test {
 protected:
  ~CacheFileSystemTest() override { work(); }

  static void work() {
    for (FailingCall* call : {&failing_read, &failing_write, &failing_fsync, &failing_fchmod})
      call->error = 0;
    modes_are_forced = false;
  }

  // Stores an entry in the empty directory. Returns the reason why it is not stored. Afterwards the
  // file system works again.
  std::string store_reason() const {
    fs::remove(directory_ / (key_.hex() + ".lzr"));
    const StoreResult result = store_.store(key_, entry_);
    work();
    EXPECT_EQ(result.stored, result.reason.empty());
    EXPECT_EQ(store_.load(key_).entry.has_value(), result.stored);
    EXPECT_EQ(std::distance(fs::directory_iterator(directory_.path()), {}), result.stored ? 1 : 0);
    return result.reason;
  }

  const TemporaryDirectory directory_;
  const DiskStore store_{directory_.path()};
  const Key key_ = KeyBuilder().field("arch", "sm_90a").finish();
  const Entry entry_ = {R"({"n":1})", std::vector<std::byte>(100)};
};

TEST_F(CacheFileSystemTest, AWriteThatFailsIsAReason) {
  for (const int error : {ENOSPC, EDQUOT, EIO, ESTALE, EFBIG, EROFS}) {
    failing_write.error = error;
    EXPECT_TRUE(says(store_reason(), {"cannot write ", std::strerror(error)}));
    failing_fsync.error = error;
    EXPECT_TRUE(says(store_reason(), {"cannot write ", std::strerror(error)}));
  }
}

TEST_F(CacheFileSystemTest, AReadThatFailsIsARefusal) {
  ASSERT_EQ(store_reason(), "");
  for (const int error : {EIO, ESTALE, EACCES}) {
    failing_read.error = error;
    const LoadResult loaded = store_.load(key_);
    EXPECT_FALSE(loaded.entry.has_value());
    EXPECT_TRUE(loaded.refused);
    EXPECT_TRUE(says(loaded.miss_reason, {"cannot be read: ", std::strerror(error)}));
    EXPECT_TRUE(says(store_.list().at(0).error, {"cannot be read: ", std::strerror(error)}));
    EXPECT_FALSE(store_.nearest(KeyBuilder().field("arch", "sm_80").finish()).has_value());
  }
}

TEST_F(CacheFileSystemTest, AFileSystemWithoutFsyncCaches) {
  for (const int error : {EINVAL, ENOSYS, EOPNOTSUPP}) {
    failing_fsync.error = error;
    EXPECT_EQ(store_reason(), "");
  }
}

TEST_F(CacheFileSystemTest, AFileSystemWithoutModesCaches) {
  for (const int error : {EPERM, EINVAL, ENOSYS, EOPNOTSUPP}) {
    failing_fchmod.error = error;
    EXPECT_EQ(store_reason(), "");
  }
  failing_fchmod.error = EIO;
  EXPECT_TRUE(says(store_reason(), {"cannot write ", std::strerror(EIO)}));
}

TEST_F(CacheFileSystemTest, AFileSystemThatForcesAModeIsAReason) {
  modes_are_forced = true;
  EXPECT_TRUE(says(store_reason(), {"the file system forces the owner or the mode",
                                    "any user may write it (mode 0777)"}));
}

}  // namespace
}  // namespace lazyrope
