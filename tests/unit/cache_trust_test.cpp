// These tests cover the owners whose files the cache uses.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "cache/disk_store.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr uid_t kBuilder = 1000;
constexpr gid_t kGroup = 4321;

FileTrust parse(const std::string& text) { return FileTrust::parse(text).value(); }

TEST(FileTrust, ReadsNumbersAndNames) {
  EXPECT_EQ(parse("1000,group:0").text(), "1000,group:0");
  EXPECT_EQ(parse(" root , group:root ").text(), "0,group:0");
  EXPECT_EQ(parse("7,7,5").text(), "5,7");
  EXPECT_TRUE(parse("0").follows_links());
  EXPECT_FALSE(FileTrust().follows_links());
  EXPECT_FALSE(FileTrust::parse("no-such-user-here").has_value());
}

class CacheTrustTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (::geteuid() != 0) GTEST_SKIP() << "only root can give files away";
    ASSERT_EQ(DiskStore(root()).store(key_, entry_).reason, "");
  }

  fs::path root() const { return directory_ / "root"; }
  fs::path file() const { return root() / (key_.hex() + ".lzr"); }

  void give(uid_t user, gid_t group, mode_t mode) const {
    ASSERT_EQ(::chown(file().c_str(), user, group), 0);
    ASSERT_EQ(::chmod(file().c_str(), mode), 0);
  }

  // Returns the reason for a miss under this value of LAZYROPE_CACHE_TRUST, empty for a hit.
  std::string miss(const std::string& trust) const {
    const FileTrust parsed = trust.empty() ? FileTrust() : parse(trust);
    const LoadResult loaded = DiskStore(root(), parsed).load(key_);
    EXPECT_NE(loaded.entry.has_value(), loaded.refused);
    return loaded.miss_reason;
  }

  // Lays the entry out as Kubernetes does: name -> ..data/name, ..data -> ..2026.
  void link_as_kubernetes() const {
    fs::create_directory(root() / "..2026");
    fs::rename(file(), root() / "..2026" / file().filename());
    fs::create_directory_symlink("..2026", root() / "..data");
    fs::create_symlink(fs::path("..data") / file().filename(), file());
  }

  const TemporaryDirectory directory_;
  const Key key_ = KeyBuilder().field("arch", "sm_90a").finish();
  const Entry entry_ = {R"({"n":1})", std::vector<std::byte>(100)};
};

TEST_F(CacheTrustTest, AFileOfAListedUserIsUsed) {
  give(kBuilder, kGroup, 0644);
  EXPECT_TRUE(says(miss(""), {"owned by user 1000", "set LAZYROPE_CACHE_TRUST=1000 if"}));
  EXPECT_EQ(miss("1000"), "");
  EXPECT_TRUE(says(miss("5"), {"set LAZYROPE_CACHE_TRUST=5,1000 if"}));
}

// OpenShift runs an image as an arbitrary user of group 0, and its files are writable by group 0.
TEST_F(CacheTrustTest, AFileThatAListedGroupMayWriteIsUsed) {
  give(kBuilder, kGroup, 0664);
  const std::string setting = "1000,group:4321";
  EXPECT_TRUE(says(miss(""), {"set LAZYROPE_CACHE_TRUST=" + setting + " if"}));
  EXPECT_TRUE(says(miss("1000"), {"group 4321 may write it (mode 0664)",
                                  "set LAZYROPE_CACHE_TRUST=" + setting + " if"}));
  EXPECT_TRUE(says(miss("group:4321"), {"owned by user 1000"}));
  EXPECT_TRUE(says(miss("1000,group:5"), {"group 4321 may write it"}));
  EXPECT_EQ(miss(setting), "");
}

TEST_F(CacheTrustTest, AFileThatAnyUserMayWriteIsNeverUsed) {
  give(kBuilder, kGroup, 0666);
  EXPECT_TRUE(says(miss("1000,group:4321"), {"any user may write it (mode 0666)", "go-w"}));
}

TEST_F(CacheTrustTest, LinksAreFollowedOnlyWithTheVariable) {
  link_as_kubernetes();
  EXPECT_TRUE(says(miss(""), {"the symbolic link " + key_.hex() + ".lzr of user 0 is not followed",
                              "set LAZYROPE_CACHE_TRUST=0 if you trust its owner"}));
  EXPECT_EQ(miss("root"), "");
  const auto listing = DiskStore(root(), parse("root")).list();
  ASSERT_EQ(listing.size(), 1u);
  EXPECT_EQ(listing[0].error, "");
  EXPECT_GT(listing[0].bytes, 100u);
}

TEST_F(CacheTrustTest, EveryLinkOnTheWayNeedsATrustedOwner) {
  link_as_kubernetes();
  const fs::path data = root() / "..data";
  ASSERT_EQ(::lchown(data.c_str(), 12345, 12345), 0);
  EXPECT_TRUE(says(miss("1000"), {"the symbolic link ..data of user 12345 is not followed",
                                  "LAZYROPE_CACHE_TRUST=1000,12345"}));
  EXPECT_EQ(miss("12345"), "");
}

TEST_F(CacheTrustTest, TheTargetOfALinkNeedsATrustedOwner) {
  link_as_kubernetes();
  ASSERT_EQ(::chown((root() / "..2026" / file().filename()).c_str(), kBuilder, 0), 0);
  EXPECT_TRUE(says(miss("root"), {"owned by user 1000", "LAZYROPE_CACHE_TRUST=0,1000"}));
  EXPECT_EQ(miss("1000"), "");
}

// Nix gives a folder of absolute links into its store.
TEST_F(CacheTrustTest, AnAbsoluteLinkIsFollowed) {
  const fs::path stored = directory_ / "store";
  fs::create_directory(stored);
  fs::rename(file(), stored / "kernel");
  fs::create_symlink(stored / "kernel", file());
  EXPECT_EQ(miss("root"), "");
  fs::remove(stored / "kernel");
  EXPECT_TRUE(says(miss("root"), {"cannot follow the link to", "No such file"}));
}

TEST_F(CacheTrustTest, AChainOfLinksWithoutAnEndIsRefused) {
  fs::remove(file());
  fs::create_symlink(file(), file());
  EXPECT_TRUE(says(miss("root"), {"a chain without an end"}));
}

TEST_F(CacheTrustTest, ALinkToAFifoDoesNotBlock) {
  fs::remove(file());
  ASSERT_EQ(::mkfifo((root() / "fifo").c_str(), 0600), 0);
  fs::create_symlink("fifo", file());
  EXPECT_TRUE(says(miss("root"), {"a FIFO, not a regular file"}));
}

}  // namespace
}  // namespace lazyrope
