#include <gtest/gtest.h>

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

#include "runtime/base/log.h"
#include "runtime/engine/cache_budget.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

class CacheBudgetTest : public ::testing::Test {
 protected:
  CacheBudgetTest() {
    set_log_sink([this](LogLevel level, std::string_view message) {
      if (level == LogLevel::kWarning) warnings_.emplace_back(message);
    });
  }
  ~CacheBudgetTest() override { set_log_sink({}); }

  // Stores an entry that was last used so many hours ago, and returns the size of its file.
  std::uint64_t put(const std::string& name, int age) const {
    const Key key = key_of(name);
    const StoreResult stored = store_.store(key, {"{}", std::vector<std::byte>(1000)});
    fs::last_write_time(directory_ / (key.hex() + ".lzr"),
                        fs::file_time_type::clock::now() - std::chrono::hours(age));
    return stored.bytes;
  }

  void use(CacheBudget& budget, const std::string& name, int age) const {
    budget.note_use(key_of(name).hex(), name, put(name, age));
  }

  static Key key_of(const std::string& name) { return KeyBuilder().field("name", name).finish(); }

  const TemporaryDirectory directory_;
  const DiskStore store_{directory_.path()};
  std::vector<std::string> warnings_;
};

TEST_F(CacheBudgetTest, RemovingWhatThisProcessUsesIsOneWarning) {
  CacheBudget budget(2500);
  use(budget, "append", 3);
  use(budget, "plan", 2);
  budget.enforce(store_);
  EXPECT_TRUE(warnings_.empty());
  use(budget, "attend", 1);
  budget.enforce(store_);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_TRUE(says(warnings_[0], {"LAZYROPE_CACHE_MAX_BYTES=2500, and the 3 kernels",
                                  " removes append, ", "Set LAZYROPE_CACHE_MAX_BYTES=1M or more"}));
  use(budget, "reposition", 0);
  budget.enforce(store_);
  EXPECT_EQ(store_.count(), 2u);
  EXPECT_EQ(warnings_.size(), 1u) << "once per process";
}

TEST_F(CacheBudgetTest, RemovingWhatAnotherProcessLeftIsNoWarning) {
  CacheBudget budget(2500);
  put("old", 5);
  put("older", 6);
  use(budget, "append", 1);
  budget.enforce(store_);
  EXPECT_EQ(store_.count(), 2u);
  EXPECT_TRUE(warnings_.empty());
}

// A value that the warning proposes must hold the kernels.
TEST_F(CacheBudgetTest, TheProposedLimitHoldsTheKernels) {
  CacheBudget budget(1);
  budget.note_use("key", "large", (3u << 20) + 5);
  use(budget, "append", 1);
  budget.enforce(store_);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_TRUE(says(warnings_[0], {"Set LAZYROPE_CACHE_MAX_BYTES=4M or more"}));
}

}  // namespace
}  // namespace lazyrope
