// These tests cover the functions of DiskStore that list and remove entries.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <chrono>
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
  EXPECT_EQ(store().prune(all).entries, 0u);

  const Removed removed = store().prune(all - 1);
  EXPECT_EQ(removed.entries, 1u);
  EXPECT_EQ(removed.bytes, oldest);
  EXPECT_EQ(store().load(a_).miss_reason, "absent");
  EXPECT_EQ(store().size_bytes(), all - oldest);
}

TEST_F(CacheManageTest, ALoadSavesAnEntryFromPruning) {
  const auto bytes = put(a_, 3h);
  put(b_, 1h);
  ASSERT_TRUE(store().load(a_).entry.has_value());
  EXPECT_EQ(store().prune(bytes + 10).entries, 1u);
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

  EXPECT_EQ(store().prune(1 << 20).entries, 0u);
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
  EXPECT_EQ(removed.entries, 3u);
  EXPECT_LT(removed.bytes, bytes);
  EXPECT_TRUE(fs::is_empty(root_));
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
  fs::create_symlink(kept, root_ / (b_.hex() + ".lzr"));
  fs::create_symlink(kept, root_ / (b_.hex() + ".AbC123.tmp"));
  fs::create_symlink(kept, root_ / (b_.hex() + ".lock"));
  fs::create_directory(root_ / (c_.hex() + ".lzr"));
  fs::create_directory_symlink(outside, root_ / "link");

  const auto number_of_files = [&] { return std::distance(fs::directory_iterator(root_), {}); };
  const auto before = number_of_files();
  EXPECT_EQ(store().clear().entries, 0u);
  EXPECT_EQ(number_of_files(), before);
  EXPECT_TRUE(fs::exists(kept));
}

TEST_F(CacheManageTest, ARootThatIsALinkIsFollowed) {
  fs::create_directory(root_ / "real");
  fs::create_directory_symlink(root_ / "real", root_ / "link");
  const DiskStore linked(root_ / "link");
  EXPECT_EQ(linked.store(a_, Entry{}).reason, "");
  EXPECT_TRUE(linked.load(a_).entry.has_value());
  EXPECT_EQ(linked.clear().entries, 1u);
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
