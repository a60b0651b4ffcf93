#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "cache/error.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

Key key_of(const std::string& name) {
  return KeyBuilder().field("arch", "sm_90a").field("name", name).finish();
}

Entry entry_of(std::size_t bytes, unsigned char fill = 7) {
  return {R"({"entry_name":"attention"})", std::vector<std::byte>(bytes, std::byte{fill})};
}

// Runs `body` in a child process without root's rights. The child prints its failed expectations.
void expect_success_in_child(const auto& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    if (::geteuid() == 0 && ::setresuid(65534, 65534, 65534) != 0) ::_exit(2);
    body();
    ::_exit(::testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

class DiskStoreTest : public ::testing::Test {
 protected:
  // Some tests read the directory as another user.
  DiskStoreTest() { ::chmod(directory_.path().c_str(), 0777); }
  ~DiskStoreTest() override {
    // Some tests remove their own rights on these directories.
    ::chmod(directory_.path().c_str(), 0700);
    ::chmod(root().c_str(), 0700);
  }

  fs::path root() const { return directory_ / "root"; }
  fs::path path_of(const Key& key) const { return root() / (key.hex() + ".lzr"); }
  DiskStore store() const { return DiskStore(root()); }

  std::size_t number_of_files() const {
    return static_cast<std::size_t>(std::distance(fs::directory_iterator(root()), {}));
  }

  void put(const Key& key) const { ASSERT_EQ(store().store(key, entry_of(1000)).reason, ""); }

  void expect_refused(const Key& key, const std::string& reason) const {
    const LoadResult result = store().load(key);
    EXPECT_FALSE(result.entry.has_value());
    EXPECT_TRUE(result.refused);
    EXPECT_EQ(result.miss_reason, path_of(key).native() + ": " + reason);
  }

  TemporaryDirectory directory_;
  const Key key_ = key_of("one");
};

unsigned mode_of(const fs::path& path) {
  struct stat status = {};
  EXPECT_EQ(::lstat(path.c_str(), &status), 0) << path;
  return status.st_mode & 07777;
}

TEST_F(DiskStoreTest, TouchesNothingUntilTheFirstStore) {
  const LoadResult result = store().load(key_);
  EXPECT_FALSE(result.entry.has_value());
  EXPECT_EQ(result.miss_reason, "absent");
  EXPECT_FALSE(result.refused);
  EXPECT_FALSE(store().nearest(key_).has_value());
  EXPECT_TRUE(store().list().empty());
  EXPECT_EQ(store().size_bytes(), 0u);
  EXPECT_EQ(store().prune(0).entries(), 0u);
  EXPECT_EQ(store().clear().entries(), 0u);
  EXPECT_FALSE(fs::exists(root()));
}

TEST_F(DiskStoreTest, LoadReturnsTheStoredEntry) {
  const Entry entry = entry_of(200'000);
  const StoreResult result = store().store(key_, entry);
  EXPECT_TRUE(result.stored);
  EXPECT_EQ(result.reason, "");

  const LoadResult loaded = store().load(key_);
  ASSERT_TRUE(loaded.entry.has_value());
  EXPECT_EQ(loaded.entry->facts, entry.facts);
  EXPECT_EQ(loaded.entry->payload, entry.payload);
  EXPECT_EQ(loaded.miss_reason, "");
  EXPECT_FALSE(loaded.refused);
  EXPECT_EQ(store().load(key_of("other")).miss_reason, "absent");
}

TEST_F(DiskStoreTest, FilesAreWritableByTheirOwnerAlone) {
  const DiskStore deep(root() / "a" / "b");
  const mode_t mask = ::umask(0);
  EXPECT_EQ(deep.store(key_, entry_of(10)).reason, "");
  ::umask(mask);
  EXPECT_EQ(mode_of(root()), 0755u);
  EXPECT_EQ(mode_of(root() / "a" / "b"), 0755u);
  EXPECT_EQ(mode_of(deep.root() / (key_.hex() + ".lzr")), 0644u);
}

// A user with a umask of 0777 gets directories without any rights from mkdir().
TEST_F(DiskStoreTest, AUmaskOf0777StillCaches) {
  expect_success_in_child([&] {
    const DiskStore deep(root() / "a" / "b");
    ::umask(0777);
    EXPECT_EQ(deep.store(key_, entry_of(10)).reason, "");
    EXPECT_TRUE(deep.load(key_).entry.has_value());
    EXPECT_EQ(mode_of(root()), 0700u);
    EXPECT_EQ(mode_of(deep.root() / (key_.hex() + ".lzr")), 0644u);
    fs::remove_all(root());
  });
}

TEST_F(DiskStoreTest, ADirectoryThatAnotherUserMadeIsUsed) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a directory away";
  fs::create_directory(root());
  ASSERT_EQ(::chown(root().c_str(), 12345, 12345), 0);
  ASSERT_EQ(::chmod(root().c_str(), 0777), 0);
  expect_success_in_child([&] {
    EXPECT_EQ(store().store(key_, entry_of(10)).reason, "");
    EXPECT_TRUE(store().load(key_).entry.has_value());
  });
}

TEST_F(DiskStoreTest, StoreReplacesALinkAndLeavesItsTarget) {
  const fs::path victim = directory_ / "victim";
  std::ofstream(victim) << "text";
  fs::create_directory(root());
  fs::create_symlink(victim, path_of(key_));
  put(key_);
  EXPECT_TRUE(store().load(key_).entry.has_value());
  EXPECT_EQ(fs::file_size(victim), 4u);
}

TEST_F(DiskStoreTest, StoreReplacesAGoodOrABadEntry) {
  put(key_);
  EXPECT_TRUE(store().store(key_, entry_of(10)).stored);
  EXPECT_EQ(store().load(key_).entry->payload.size(), 10u);

  std::ofstream(path_of(key_)) << "something else";
  expect_refused(key_, "truncated: 14 bytes; the header alone has 68");
  EXPECT_TRUE(store().store(key_, entry_of(20)).stored);
  EXPECT_EQ(store().load(key_).entry->payload.size(), 20u);
  EXPECT_EQ(number_of_files(), 1u);
}

TEST_F(DiskStoreTest, RefusesDamagedEntries) {
  put(key_);
  const auto size = fs::file_size(path_of(key_));
  fs::resize_file(path_of(key_), size - 1);
  expect_refused(key_,
                 "truncated: " + std::to_string(size - 1) + " bytes of " + std::to_string(size));
  fs::resize_file(path_of(key_), size);  // the last byte, a seven, becomes zero
  expect_refused(key_, "checksum mismatch");
  fs::resize_file(path_of(key_), 0);
  expect_refused(key_, "truncated: 0 bytes; the header alone has 68");
}

TEST_F(DiskStoreTest, RefusesTheEntryOfAnotherKey) {
  const Key other = key_of("other");
  put(key_);
  fs::rename(path_of(key_), path_of(other));
  expect_refused(other, "it belongs to the key " + key_.hex());
}

TEST_F(DiskStoreTest, RefusesLinksDirectoriesAndFifos) {
  const Key other = key_of("other");
  put(other);
  fs::create_symlink(path_of(other), path_of(key_));
  expect_refused(key_, fmt::format("the symbolic link {0}.lzr of user {1} is not followed: set "
                                   "LAZYROPE_CACHE_TRUST={1} if you trust its owner",
                                   key_.hex(), ::geteuid()));

  fs::remove(path_of(key_));
  fs::create_directory(path_of(key_));
  expect_refused(key_, "a folder, not a regular file");

  fs::remove(path_of(key_));
  ASSERT_EQ(::mkfifo(path_of(key_).c_str(), 0600), 0);
  expect_refused(key_, "a FIFO, not a regular file");

  fs::remove(path_of(key_));
  ASSERT_EQ(::mknod(path_of(key_).c_str(), S_IFSOCK | 0600, 0), 0);
  expect_refused(key_, "a socket, not a regular file");
}

TEST_F(DiskStoreTest, RefusesFilesThatOthersMayWrite) {
  put(key_);
  ::chmod(path_of(key_).c_str(), 0660);
  expect_refused(key_, fmt::format("group {0} may write it (mode 0660): run chmod -R go-w, or set "
                                   "LAZYROPE_CACHE_TRUST=group:{0} if you trust the whole group",
                                   ::getegid()));
  ::chmod(path_of(key_).c_str(), 0602);
  expect_refused(key_, "any user may write it (mode 0602): run chmod -R go-w");
  ::chmod(path_of(key_).c_str(), 0644);
  EXPECT_TRUE(store().load(key_).entry.has_value());
}

TEST_F(DiskStoreTest, RefusesFilesOfAnotherUser) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can give a file away";
  put(key_);
  ASSERT_EQ(::chown(path_of(key_).c_str(), 12345, 12345), 0);
  expect_refused(key_,
                 "owned by user 12345; only files of user 0 or root are trusted: chown them, or "
                 "set LAZYROPE_CACHE_TRUST=12345 if you trust their writers");
}

TEST_F(DiskStoreTest, TrustsFilesOfRoot) {
  if (::geteuid() != 0) GTEST_SKIP() << "only root can make a file of root";
  put(key_);
  ::chmod(root().c_str(), 0755);
  ::chmod(path_of(key_).c_str(), 0644);
  expect_success_in_child([&] { EXPECT_TRUE(store().load(key_).entry.has_value()); });
}

TEST_F(DiskStoreTest, AnUnreadableEntryIsAMiss) {
  put(key_);
  ::chmod(root().c_str(), 0755);
  ::chmod(path_of(key_).c_str(), 0);
  expect_success_in_child([&] { expect_refused(key_, "cannot be opened: Permission denied"); });
}

// The child without root's rights can read the directory and not write it.
TEST_F(DiskStoreTest, AReadOnlyDirectoryIsStillRead) {
  put(key_);
  ::chmod(path_of(key_).c_str(), 0644);
  ::chmod(root().c_str(), 0555);
  expect_success_in_child([&] {
    EXPECT_TRUE(store().load(key_).entry.has_value());
    const StoreResult stored = store().store(key_of("other"), entry_of(10));
    EXPECT_FALSE(stored.stored);
    EXPECT_EQ(stored.reason, "cannot create " + (root() / key_of("other").hex()).native() +
                                 ".XXXXXX.tmp: Permission denied");
    EXPECT_TRUE(throws<CacheError>([&] { store().check_writable(); },
                                   {"cannot create " + root().native(), "Permission denied"}));
    const FileLock lock = store().lock(key_, 1s);
    EXPECT_FALSE(lock.is_held());
    EXPECT_EQ(lock.reason(),
              "cannot open " + (root() / key_.hex()).native() + ".lock: Permission denied");
  });
  EXPECT_EQ(number_of_files(), 1u);
}

TEST_F(DiskStoreTest, AHomeThatCannotBeWrittenIsReported) {
  ::chmod(directory_.path().c_str(), 0555);
  expect_success_in_child([&] {
    const std::string reason = "cannot create directory " + root().native() + ": Permission denied";
    const DiskStore nested(root() / "lazyrope");
    EXPECT_EQ(nested.store(key_, entry_of(10)).reason, reason);
    EXPECT_EQ(nested.lock(key_, 1s).reason(), reason);
    EXPECT_EQ(nested.load(key_).miss_reason, "absent");
  });
}

TEST_F(DiskStoreTest, ARootThatIsAFileIsReported) {
  std::ofstream(root()) << "text";
  expect_refused(key_, "cannot be opened: Not a directory");
  EXPECT_EQ(store().store(key_, entry_of(10)).reason,
            "cannot create " + (root() / key_.hex()).native() + ".XXXXXX.tmp: Not a directory");
  EXPECT_FALSE(store().lock(key_, 1s).is_held());
  EXPECT_FALSE(store().nearest(key_).has_value());
  EXPECT_TRUE(throws<CacheError>([&] { store().check_writable(); }, {"Not a directory"}));
}

TEST_F(DiskStoreTest, ARootThatCanBeWrittenIsMadeAndLeftEmpty) {
  const DiskStore deep(root() / "a");
  EXPECT_NO_THROW(deep.check_writable());
  EXPECT_TRUE(fs::is_empty(deep.root()));
}

TEST_F(DiskStoreTest, WithoutARootNothingIsStored) {
  const DiskStore nowhere("");
  EXPECT_EQ(nowhere.store(key_, entry_of(10)).reason, "no cache directory is set");
  EXPECT_EQ(nowhere.load(key_).miss_reason, "no cache directory is set");
  EXPECT_FALSE(nowhere.load(key_).refused);
  EXPECT_EQ(nowhere.lock(key_, 1s).reason(), "no cache directory is set");
  EXPECT_TRUE(nowhere.list().empty());
  EXPECT_EQ(nowhere.count(), 0u);
  EXPECT_THROW(nowhere.check_writable(), CacheError);
}

TEST_F(DiskStoreTest, ARelativeRootDoesNotMoveWithTheWorkingDirectory) {
  const fs::path before = fs::current_path();
  fs::current_path(directory_.path());
  const DiskStore relative("root");
  fs::current_path(before);
  EXPECT_EQ(relative.root(), root());
}

// A limit on the size of files makes the second store fail as on a full disk.
TEST_F(DiskStoreTest, AFullDiskLeavesTheOldEntryAndNoTemporaryFile) {
  expect_success_in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{5000, 5000};
    ASSERT_EQ(::setrlimit(RLIMIT_FSIZE, &limit), 0);
    EXPECT_TRUE(store().store(key_, entry_of(1000)).stored);
    const StoreResult result = store().store(key_, entry_of(100'000));
    EXPECT_FALSE(result.stored);
    EXPECT_TRUE(result.reason.ends_with(".tmp: File too large")) << result.reason;
    EXPECT_EQ(number_of_files(), 1u);
    EXPECT_EQ(store().load(key_).entry->payload.size(), 1000u);
  });
}

TEST_F(DiskStoreTest, AnEntryThatCannotBeEncodedIsReported) {
  const StoreResult result = store().store(key_, Entry{"\"\xff\"", {}});
  EXPECT_FALSE(result.stored);
  EXPECT_EQ(result.reason, "the facts are not JSON");
}

TEST_F(DiskStoreTest, AHitSetsTheTimeOfLastUse) {
  put(key_);
  fs::last_write_time(path_of(key_), fs::file_time_type::clock::now() - 48h);
  EXPECT_LT(store().list().at(0).last_use, std::chrono::system_clock::now() - 47h);
  ASSERT_TRUE(store().load(key_).entry.has_value());
  EXPECT_GT(store().list().at(0).last_use, std::chrono::system_clock::now() - 1h);
}

TEST_F(DiskStoreTest, AMissDoesNotSetTheTimeOfLastUse) {
  put(key_);
  fs::resize_file(path_of(key_), 100);
  fs::last_write_time(path_of(key_), fs::file_time_type::clock::now() - 48h);
  ASSERT_TRUE(store().load(key_).refused);
  EXPECT_LT(store().list().at(0).last_use, std::chrono::system_clock::now() - 47h);
}

}  // namespace
}  // namespace lazyrope
