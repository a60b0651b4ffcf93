// These tests cover what pruning keeps: pins, the entries of a manifest, and recent use.
#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cache/disk_store.h"
#include "cache/error.h"
#include "cache/pack.h"
#include "cache/pins.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using namespace std::chrono_literals;

class CachePinsTest : public ::testing::Test {
 protected:
  // Stores an entry that was last used that long ago, and returns the size of its file.
  std::uint64_t put(const Key& key, std::chrono::hours age) const {
    EXPECT_TRUE(store_.store(key, {"{}", std::vector<std::byte>(1000)}).stored);
    const fs::path file = root_ / (key.hex() + ".lzr");
    fs::last_write_time(file, fs::file_time_type::clock::now() - age);
    return fs::file_size(file);
  }
  bool has(const Key& key) const { return fs::exists(root_ / (key.hex() + ".lzr")); }

  const TemporaryDirectory directory_;
  const fs::path root_ = directory_.path() / "cache";
  const DiskStore store_{root_};
  const Key a_ = KeyBuilder().field("arch", "sm_80").finish();
  const Key b_ = KeyBuilder().field("arch", "sm_89").finish();
  const Key c_ = KeyBuilder().field("arch", "sm_90a").finish();
};

TEST_F(CachePinsTest, PruningLeavesPinnedEntriesHoweverOld) {
  const auto bytes = put(a_, 99h) + put(c_, 3h);
  put(b_, 1h);
  write_pin(root_, {"production", {a_.hex()}});
  write_pin(root_, {"test", {c_.hex(), std::string(64, 'f')}});
  const Removed removed =
      store_.prune({.max_bytes = 1, .oldest_use = std::chrono::system_clock::now()});
  EXPECT_EQ(removed.entries(), 1u);
  EXPECT_EQ(removed.excess_bytes, bytes - 1);
  EXPECT_TRUE(has(a_) && has(c_) && !has(b_));
  remove_pin(root_, "production");
  EXPECT_EQ(store_.prune(1).entries(), 1u);
  EXPECT_TRUE(!has(a_) && has(c_));
}

TEST_F(CachePinsTest, PruningByAgeLeavesWhatWasUsedSince) {
  put(a_, 30h);
  put(b_, 10h);
  put(c_, 20h);
  const auto now = std::chrono::system_clock::now();
  EXPECT_EQ(store_.prune({.oldest_use = now - 40h}).entries(), 0u);
  const Removed removed = store_.prune({.oldest_use = now - 15h, .keep = {c_.hex()}});
  EXPECT_EQ(removed.entries(), 1u);
  EXPECT_EQ(removed.excess_bytes, 0u);
  EXPECT_TRUE(!has(a_) && has(b_) && has(c_));
}

TEST_F(CachePinsTest, APinThatCannotBeReadStopsPruning) {
  put(a_, 1h);
  fs::create_directory(root_ / "pins");
  const fs::path pin = root_ / "pins" / "production.json";
  for (const char* text :
       {"", "[]", "{}", R"({"entries":[1]})", R"({"entries":[{"key":"../x"}]})"}) {
    std::ofstream(pin) << text;
    EXPECT_TRUE(
        throws<CacheError>([&] { (void)store_.prune(0); }, {pin.string(), "nothing is removed"}))
        << text;
    EXPECT_TRUE(has(a_));
  }
  std::ofstream(pin) << R"({"entries":[]})";
  fs::permissions(pin, fs::perms::others_write, fs::perm_options::add);
  EXPECT_TRUE(throws<CacheError>([&] { (void)store_.prune(0); }, {"any user may write it"}));
  fs::remove(pin);
  EXPECT_EQ(store_.prune(0).entries(), 1u);
}

TEST_F(CachePinsTest, PinsAreListedAndReplaced) {
  EXPECT_TRUE(pins_in(root_).empty());
  EXPECT_TRUE(pins_in("").empty());
  write_pin(root_, {"b", {a_.hex()}});
  write_pin(root_, {"a.1", {a_.hex()}});
  write_pin(root_, {"a.1", {b_.hex(), c_.hex()}});
  std::ofstream(root_ / "pins" / "README") << "text";
  const std::vector<Pin> pins = pins_in(root_);
  ASSERT_EQ(pins.size(), 2u);
  EXPECT_EQ(pins[0].name, "a.1");
  EXPECT_EQ(pins[0].keys, (KeySet{b_.hex(), c_.hex()}));
  EXPECT_EQ(pinned_keys(root_).size(), 3u);
  EXPECT_TRUE(throws<CacheError>([&] { remove_pin(root_, "x"); }, {"no pin 'x'", "are: a.1, b"}));
}

TEST_F(CachePinsTest, ANameThatIsAPathIsRefused) {
  for (const std::string& name : {std::string(), std::string("../x"), std::string("a/b"),
                                  std::string(".x"), std::string("x\ny"), std::string(65, 'x')}) {
    const auto write = [&] { write_pin(root_, {name, {}}); };
    EXPECT_TRUE(throws<CacheError>(write, {"1 to 64 characters"})) << name;
    EXPECT_TRUE(throws<CacheError>([&] { remove_pin(root_, name); }, {"1 to 64 characters"}));
  }
  EXPECT_FALSE(fs::exists(root_ / "pins"));
}

TEST_F(CachePinsTest, PacksAndManifestsNameKeys) {
  const fs::path file = directory_ / "file";
  const KeySet keys = {a_.hex(), b_.hex()};
  std::ofstream(file) << R"({"directory":"/x","entries":[{"key":")" << a_.hex()
                      << R"(","error":null},{"key":")" << b_.hex() << R"("}]})";
  EXPECT_EQ(keys_in_file(file), keys);
  PackWriter writer;
  writer.add(a_, {"{}", {}});
  writer.add(b_, {"{}", {}});
  const std::vector<std::byte> pack = writer.finish(std::nullopt);
  std::ofstream(file) << text_of(ByteSpan(pack));
  EXPECT_EQ(keys_in_file(file), keys);
  std::ofstream(file) << "text";
  EXPECT_TRUE(throws<CacheError>([&] { (void)keys_in_file(file); }, {"neither a pack nor"}));
}

}  // namespace
}  // namespace lazyrope
