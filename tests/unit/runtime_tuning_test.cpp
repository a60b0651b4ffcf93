#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "cache/error.h"
#include "runtime/engine/tuning.h"
#include "runtime/engine/tuning_store.h"
#include "tests/support/engines.h"
#include "tests/support/log_capture.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"
#include "tests/support/tunings.h"

namespace lazyrope {
namespace {

TEST(Tuning, ReadsBackAsItWasWritten) {
  const Tuning tuning = example_tuning();
  EXPECT_EQ(tuning_of(nlohmann::json::parse(json_of(tuning).dump())), tuning);
}

TEST(Tuning, JsonHasEveryConfigWithItsTimes) {
  const nlohmann::json json = json_of(example_tuning());
  EXPECT_EQ(json["gpu"], "fake GPU");
  EXPECT_EQ(json["config"]["decode"]["stages"], 3);
  const nlohmann::json& trials = json["tasks"][0]["trials"];
  ASSERT_EQ(trials.size(), 3u);
  EXPECT_EQ(trials[0]["us"], (std::vector{28.5, 240.25}));
  EXPECT_EQ(trials[1]["gain"], 0.039);
  EXPECT_EQ(trials[2]["rejection"], "spills registers");
}

TEST(Tuning, AnIncompleteRecordIsRefused) {
  nlohmann::json json = json_of(example_tuning());
  json.erase("driver");
  EXPECT_TRUE(throws<CacheError>([&] { tuning_of(json); }, {"incomplete", "driver"}));
  json = json_of(example_tuning());
  json["config"]["prefill"]["stages"] = "two";
  EXPECT_TRUE(throws<CacheError>([&] { tuning_of(json); }, {"incomplete"}));
  json = json_of(example_tuning());
  json["tasks"][0]["chosen"] = 3;
  EXPECT_TRUE(throws<CacheError>([&] { tuning_of(json); }, {"is not among its trials"}));
}

TEST(Tuning, TheSummaryHasChoiceGainAndTimes) {
  Tuning tuning = example_tuning();
  EXPECT_TRUE(says(summary(tuning),
                   {"decode: of 3 configs one takes 3.9% less time than the default (noise 0.4%): "
                    "3 stages\n",
                    "in 7.0 s: compiling 5.5 s, measuring 1.2 s"}));
  tuning.tasks[0].chosen = 0;
  EXPECT_TRUE(says(summary(tuning), {"decode: of 3 configs the default stays: 2 stages\n"}));
}

class TuningStoreTest : public testing::Test {
 protected:
  std::shared_ptr<const Tuning> example() const {
    return std::make_shared<Tuning>(example_tuning());
  }
  // Returns the record that another process would find.
  std::shared_ptr<const Tuning> found_by_new_store() const {
    return TuningStore(cache_).find(key_);
  }

  TemporaryDirectory root_;
  KernelCache cache_{test_config(root_.path())};
  TuningStore store_{cache_};
  Key key_ = KeyBuilder().field("gpu", "fake GPU").finish();
};

TEST_F(TuningStoreTest, TheNextProcessFindsTheRecord) {
  EXPECT_EQ(store_.find(key_), nullptr);
  store_.store(key_, example());
  EXPECT_EQ(*store_.find(key_), example_tuning());
  ASSERT_NE(found_by_new_store(), nullptr);
  EXPECT_EQ(*found_by_new_store(), example_tuning());
  EXPECT_EQ(TuningStore(cache_).find(KeyBuilder().field("gpu", "other").finish()), nullptr);
}

TEST_F(TuningStoreTest, TheListHasTheRecordAsATuning) {
  store_.store(key_, example());
  const std::vector<ListedEntry> listed = cache_.store().list();
  ASSERT_EQ(listed.size(), 1u);
  const nlohmann::json facts = nlohmann::json::parse(listed[0].facts);
  EXPECT_EQ(facts["entry"], kTuningEntry);
  EXPECT_EQ(facts["arch"], "sm_90a");
  EXPECT_EQ(facts["compiler"], "nvrtc 13.0-abc");
}

TEST_F(TuningStoreTest, TheDiskIsReadOnceUntilTheStoreIsCleared) {
  EXPECT_EQ(store_.find(key_), nullptr);
  TuningStore(cache_).store(key_, example());
  EXPECT_EQ(store_.find(key_), nullptr);
  store_.clear();
  EXPECT_NE(store_.find(key_), nullptr);
  store_.mark_missing(key_);
  EXPECT_EQ(store_.find(key_), nullptr);
  EXPECT_NE(found_by_new_store(), nullptr) << "another process still finds the record";
}

// The second thread waits for the lock, and must find the record that the first holder stored.
TEST_F(TuningStoreTest, AfterTheWaitForTheLockTheRecordIsFound) {
  EXPECT_EQ(store_.find(key_), nullptr);
  TuningStore other(cache_);
  std::optional<FileLock> first = other.lock(key_);
  ASSERT_TRUE(first->is_held());
  std::atomic<bool> is_kept = false;
  std::thread waiting([&] {
    const FileLock second = store_.lock(key_);
    EXPECT_TRUE(is_kept);
    EXPECT_NE(store_.find(key_), nullptr);
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  other.store(key_, example());
  is_kept = true;
  first.reset();
  waiting.join();
}

TEST_F(TuningStoreTest, ACorruptRecordIsALoggedMiss) {
  store_.store(key_, example());
  std::fstream file(root_ / (key_.hex() + ".lzr"), std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-1, std::ios::end);
  file.put('x');
  file.close();
  const LogCapture log;
  EXPECT_EQ(found_by_new_store(), nullptr);
  EXPECT_TRUE(says(log.text(), {"warning: the tuning record", "checksum mismatch", "tune again"}));
  store_.store(key_, example());
  EXPECT_NE(found_by_new_store(), nullptr) << "a new record replaces the corrupt one";
}

TEST_F(TuningStoreTest, ARecordOfAnotherShapeIsALoggedMiss) {
  ASSERT_TRUE(cache_.store().store(key_, {R"({"entry":"tuning"})", {}}).stored);
  const LogCapture log;
  EXPECT_EQ(found_by_new_store(), nullptr);
  EXPECT_TRUE(says(log.text(), {"warning: the tuning record", "incomplete"}));
}

TEST_F(TuningStoreTest, WithoutADirectoryTheRecordIsInMemoryOnly) {
  const LogCapture log;
  const KernelCache in_memory(test_config());
  TuningStore store(in_memory);
  store.store(key_, example());
  EXPECT_NE(store.find(key_), nullptr);
  EXPECT_TRUE(says(log.text(), {"is not kept for other processes", "LAZYROPE_CACHE_DIR"}));
}

}  // namespace
}  // namespace lazyrope
