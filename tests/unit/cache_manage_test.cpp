// These tests cover the functions of DiskStore that list and remove entries.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "cache/error.h"
#include "tests/support/temporary_directory.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;
using Names = std::vector<std::string>;

Key key_of(const std::string& arch, const std::string& source = "text") {
  return KeyBuilder().field("arch", arch).field("source", source).field("nvrtc", "13.0").finish();
}

std::string error_of(const auto& action) {
  try {
    action();
  } catch (const CacheError& error) {
    return error.what();
  }
  return "no error";
}

class CacheManageTest : public ::testing::Test {
 protected:
  DiskStore store() const { return DiskStore(root_); }
  fs::path path_of(const Key& key) const { return root_ / (key.hex() + ".lzr"); }

  static void set_age(const fs::path& path, std::chrono::hours age) {
    fs::last_write_time(path, fs::file_time_type::clock::now() - age);
  }

  // Stores an entry of the given age, and returns the size of its file.
  std::uint64_t put(const Key& key, std::chrono::hours age) const {
    const Entry entry{fmt::format(R"({{"age":{}}})", age.count()), std::vector<std::byte>(1000)};
    EXPECT_EQ(store().store(key, entry).reason, "");
    set_age(path_of(key), age);
    return fs::file_size(path_of(key));
  }

  void damage(const Key& key) const {
    const auto time = fs::last_write_time(path_of(key));
    fs::resize_file(path_of(key), 100);
    fs::last_write_time(path_of(key), time);
  }

  fs::path write(const std::string& name) const {
    std::ofstream(root_ / name) << "text";
    return root_ / name;
  }

  std::ptrdiff_t number_of_files() const {
    return std::distance(fs::directory_iterator(root_), {});
  }

  // Puts a link, a FIFO, a socket and a folder in the place of entries. Returns the link's target.
  fs::path put_irregular() const {
    const auto place = [&](const char* name) {
      return root_ / (key_of("sm_90a", name).hex() + ".lzr");
    };
    const fs::path target = write("target");
    fs::create_symlink(target, place("link"));
    EXPECT_EQ(::mkfifo(place("fifo").c_str(), 0600), 0);
    EXPECT_EQ(::mknod(place("socket").c_str(), S_IFSOCK | 0600, 0), 0);
    fs::create_directory(place("folder"));
    return target;
  }

  const TemporaryDirectory directory_;
  const fs::path root_ = directory_.path();
  const Key a_ = key_of("sm_80");
  const Key b_ = key_of("sm_89");
  const Key c_ = key_of("sm_90a");
};

TEST_F(CacheManageTest, ListsTheMostRecentlyUsedFirst) {
  put(a_, 2h);
  const auto bytes = put(b_, 1h);
  put(c_, 3h);
  const auto listing = store().list();
  ASSERT_EQ(listing.size(), 3u);
  EXPECT_EQ(listing[0].key, b_.hex());
  EXPECT_EQ(listing[1].key, a_.hex());
  EXPECT_EQ(listing[2].key, c_.hex());
  EXPECT_EQ(listing[0].bytes, bytes);
  EXPECT_EQ(listing[0].fields, b_.fields());
  EXPECT_EQ(listing[0].facts, R"({"age":1})");
  EXPECT_EQ(listing[0].error, "");
  const auto age = std::chrono::system_clock::now() - listing[0].last_use;
  EXPECT_NEAR(static_cast<double>(age / 1s), 3600, 60);
}

TEST_F(CacheManageTest, ListsDamagedEntriesWithTheReason) {
  put(a_, 1h);
  put(b_, 2h);
  damage(b_);
  const auto listing = store().list();
  ASSERT_EQ(listing.size(), 2u);
  EXPECT_EQ(listing[0].error, "");
  EXPECT_EQ(listing[1].key, b_.hex());
  EXPECT_TRUE(listing[1].error.starts_with("truncated: 100 bytes of 11")) << listing[1].error;
  EXPECT_TRUE(listing[1].fields.empty());
  EXPECT_TRUE(listing[1].facts.empty());
}

TEST_F(CacheManageTest, CountsEntriesOnly) {
  const auto bytes = put(a_, 1h) + put(b_, 1h);
  write(a_.hex() + ".lock");
  write("README");
  EXPECT_EQ(store().size_bytes(), bytes);
  EXPECT_EQ(store().list().size(), 2u);
  EXPECT_EQ(store().count(), 2u);
}

TEST_F(CacheManageTest, PrunesTheLeastRecentlyUsed) {
  const auto oldest = put(a_, 3h);
  const auto all = oldest + put(b_, 1h) + put(c_, 2h);
  EXPECT_EQ(store().prune(all).entries(), 0u);

  const Removed removed = store().prune(all - 1);
  EXPECT_EQ(removed.entries(), 1u);
  EXPECT_EQ(removed.bytes, oldest);
  EXPECT_EQ(store().load(a_).miss_reason, "absent");
  EXPECT_EQ(store().size_bytes(), all - oldest);
}

TEST_F(CacheManageTest, ALoadSavesAnEntryFromPruning) {
  const auto bytes = put(a_, 3h);
  put(b_, 1h);
  ASSERT_TRUE(store().load(a_).entry.has_value());
  EXPECT_EQ(store().prune(bytes + 10).entries(), 1u);
  EXPECT_TRUE(store().load(a_).entry.has_value());
  EXPECT_EQ(store().load(b_).miss_reason, "absent");
}

TEST_F(CacheManageTest, PrunesLeftoversOfKilledProcesses) {
  put(a_, 1h);
  const fs::path stale = write(a_.hex() + ".AbC123.tmp");
  const fs::path fresh = write(a_.hex() + ".dEf456.tmp");
  set_age(stale, 2h);
  const fs::path abandoned = write(b_.hex() + ".lock");
  const FileLock held = store().lock(c_, 1s);

  EXPECT_EQ(store().prune(1 << 20).entries(), 0u);
  EXPECT_FALSE(fs::exists(stale));
  EXPECT_TRUE(fs::exists(fresh));
  EXPECT_FALSE(fs::exists(abandoned));
  EXPECT_TRUE(fs::exists(root_ / (c_.hex() + ".lock")));
  EXPECT_FALSE(store().lock(c_, 0ms).is_held());
}

TEST_F(CacheManageTest, ClearLeavesAnEmptyDirectory) {
  const auto bytes = put(a_, 1h) + put(b_, 2h);
  damage(b_);
  fs::resize_file(write(c_.hex() + ".lzr"), 0);
  write(a_.hex() + ".AbC123.tmp");
  write(a_.hex() + ".lock");
  const Removed removed = store().clear();
  EXPECT_EQ(removed.entries(), 3u);
  EXPECT_LT(removed.bytes, bytes);
  EXPECT_TRUE(fs::is_empty(root_));
}

// A clock that was wrong leaves dates in the future, which never become old.
TEST_F(CacheManageTest, PrunesLeftoversWithADateInTheFuture) {
  put(a_, 1h);
  const fs::path future = write(a_.hex() + ".AbC123.tmp");
  set_age(future, -24h * 365);
  store().prune(1 << 20);
  EXPECT_FALSE(fs::exists(future));
}

TEST_F(CacheManageTest, ListsWhatIsNoRegularFileAsBad) {
  put(a_, 1h);
  put_irregular();
  const auto listing = store().list();
  EXPECT_EQ(listing.size(), 5u);
  for (const ListedEntry& entry : listing) {
    if (entry.key == a_.hex()) continue;
    EXPECT_NE(entry.error, "");
    EXPECT_EQ(entry.bytes, 0u);
  }
}

TEST_F(CacheManageTest, RemovesWhatIsNoRegularFile) {
  put(a_, 1h);
  const fs::path victim = put_irregular();
  fs::create_symlink(victim, root_ / (a_.hex() + ".lock"));
  const Removed removed = store().remove_irregular();
  EXPECT_EQ(removed.entries(), 4u);
  EXPECT_TRUE(removed.remaining_folders.empty());
  EXPECT_TRUE(fs::exists(victim));
  EXPECT_EQ(number_of_files(), 2) << "an entry and the link's target";
  EXPECT_TRUE(store().load(a_).entry.has_value());
}

TEST_F(CacheManageTest, ClearRemovesWhatIsNoRegularFile) {
  const fs::path victim = put_irregular();
  EXPECT_EQ(store().clear().entries(), 4u);
  EXPECT_TRUE(fs::exists(victim));
  EXPECT_EQ(number_of_files(), 1);
}

TEST_F(CacheManageTest, AFolderThatIsNotEmptyIsReportedAndKept) {
  const fs::path folder = root_ / (a_.hex() + ".lzr");
  fs::create_directory(folder);
  std::ofstream(folder / "file") << "text";
  for (const Removed& removed : {store().remove_irregular(), store().clear()}) {
    EXPECT_EQ(removed.entries(), 0u);
    EXPECT_EQ(removed.remaining_folders, Names{folder.native()});
  }
  EXPECT_TRUE(fs::exists(folder / "file"));
}

// A user may have forgotten LAZYROPE_CACHE_TRUST, and the engine prunes after each compilation.
TEST_F(CacheManageTest, PruneLeavesWhatIsNoRegularFile) {
  put_irregular();
  EXPECT_EQ(store().prune(0).entries(), 0u);
  EXPECT_EQ(number_of_files(), 5);
}

TEST_F(CacheManageTest, LinksThatAreFollowedStay) {
  put_irregular();
  const DiskStore follows(root_, FileTrust{.users = {::geteuid()}, .groups = {}});
  EXPECT_EQ(follows.remove_irregular().entries(), 3u);
  EXPECT_EQ(number_of_files(), 2) << "the link and its target";
}

TEST_F(CacheManageTest, ClearTouchesNothingElse) {
  const fs::path outside = root_ / "outside";
  fs::create_directory(outside);
  const fs::path kept = outside / (a_.hex() + ".lzr");
  std::ofstream(kept) << "text";
  write("README");
  write(a_.hex());
  write(a_.hex() + ".lzr.bak");
  write("x" + a_.hex() + ".lzr");
  write(a_.hex() + ".toolong.tmp");
  fs::create_directory_symlink(outside, root_ / "link");

  const auto before = number_of_files();
  EXPECT_EQ(store().clear().entries(), 0u);
  EXPECT_EQ(number_of_files(), before);
  EXPECT_TRUE(fs::exists(kept));
}

TEST_F(CacheManageTest, ARootThatIsALinkIsFollowed) {
  fs::create_directory(root_ / "real");
  fs::create_directory_symlink(root_ / "real", root_ / "link");
  const DiskStore linked(root_ / "link");
  EXPECT_EQ(linked.store(a_, Entry{}).reason, "");
  EXPECT_TRUE(linked.load(a_).entry.has_value());
  EXPECT_EQ(linked.clear().entries(), 1u);
}

TEST_F(CacheManageTest, ADirectoryThatCannotBeListedIsAnError) {
  const fs::path file = write("file");
  const DiskStore broken(file);
  const std::string message = "cannot list " + file.native() + ": Not a directory";
  EXPECT_EQ(error_of([&] { broken.list(); }), message);
  EXPECT_EQ(error_of([&] { broken.size_bytes(); }), message);
  EXPECT_EQ(error_of([&] { broken.clear(); }), message);
  EXPECT_EQ(error_of([&] { broken.prune(0); }), message);
}

TEST_F(CacheManageTest, NearestDiffersInTheFewestFields) {
  put(key_of("sm_80", "other text"), 1h);
  put(key_of("sm_80"), 2h);
  const auto nearest = store().nearest(key_of("sm_90a"));
  ASSERT_TRUE(nearest.has_value());
  EXPECT_EQ(nearest->key, key_of("sm_80").hex());
  EXPECT_EQ(nearest->differing, Names{"arch"});
  EXPECT_EQ(nearest->fields.at("arch"), "sm_80");
}

TEST_F(CacheManageTest, NearestNamesFieldsThatAreMissing) {
  put(a_, 1h);
  const Key key = KeyBuilder().field("arch", "sm_90a").field("tune", "2").finish();
  EXPECT_EQ(store().nearest(key)->differing, (Names{"arch", "nvrtc", "source", "tune"}));
}

TEST_F(CacheManageTest, NearestPrefersTheMostRecentlyUsed) {
  put(a_, 2h);
  put(b_, 1h);
  EXPECT_EQ(store().nearest(c_)->key, b_.hex());
  set_age(path_of(b_), 3h);
  EXPECT_EQ(store().nearest(c_)->key, a_.hex());
}

TEST_F(CacheManageTest, NearestSkipsTheKeyItself) {
  put(a_, 1h);
  EXPECT_FALSE(store().nearest(a_).has_value());
}

TEST_F(CacheManageTest, NearestSkipsBadEntries) {
  put(a_, 1h);
  fs::copy_file(path_of(a_), path_of(b_));
  EXPECT_EQ(store().nearest(c_)->key, a_.hex());
  fs::resize_file(path_of(a_), 50);
  EXPECT_FALSE(store().nearest(c_).has_value());
}

}  // namespace
}  // namespace lazyrope
