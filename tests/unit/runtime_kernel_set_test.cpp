#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cache/error.h"
#include "codegen/error.h"
#include "runtime/attention/attention.h"
#include "runtime/base/error.h"
#include "runtime/engine/kernel_set.h"
#include "tests/support/engines.h"
#include "tests/support/specs.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kDecode = 1;  // index in attention_kernels()
constexpr std::size_t kPrefill = 2;

const Arch& arch() { return find_arch("sm_100"); }

KernelSetRequest request() { return attention_set(small_spec(), arch()); }

// Makes a cache directory as in a deployment without a compiler. The directory has the kernels of
// all configs of an attention. The first two configs have the same prefill kernel.
class KernelSetTest : public testing::Test {
 protected:
  KernelSetTest() {
    for (const KernelConfig& config : configs_) {
      const auto compiled =
          compile_sets(shared_engine(), {attention_set(small_spec(), arch(), config)}, {}).front();
      for (const KernelResult& result : compiled.results)
        fs::copy_file(file(LAZYROPE_TEST_CACHE_DIR, result.key),
                      file(directory_.path(), result.key), fs::copy_options::skip_existing);
      keys_.push_back({});
      for (const KernelResult& result : compiled.results) keys_.back().push_back(result.key);
    }
  }

  static fs::path file(const fs::path& directory, const std::string& key) {
    return directory / (key + ".lzr");
  }

  Config config() const {
    Config config = test_config(directory_.path());
    config.policy = CachePolicy::kCacheOnly;
    config.nvrtc_path = "/nonexistent/libnvrtc.so";
    return config;
  }

  KernelSet find(EngineOptions options = {}) const {
    Engine engine(config());
    return compile_sets(engine, {request()}, options).front();
  }

  Key key_of(std::size_t config, std::size_t kernel) const {
    const std::vector<ListedEntry> listing = DiskStore(directory_.path()).list();
    const auto listed = std::ranges::find(listing, keys_.at(config).at(kernel), &ListedEntry::key);
    return Key::from_fields(listed->fields);
  }

  // Makes the kernel spill, as if another NVRTC had compiled it.
  void make_spill(std::size_t config, std::size_t kernel) const {
    const DiskStore store(directory_.path());
    const Key key = key_of(config, kernel);
    Entry entry = store.load(key).entry.value();
    nlohmann::json facts = nlohmann::json::parse(entry.facts);
    facts["spill_bytes"] = 8;
    entry.facts = facts.dump();
    ASSERT_TRUE(store.store(key, entry).stored);
  }

  void remove(std::size_t config, std::size_t kernel) const {
    ASSERT_TRUE(fs::remove(file(directory_.path(), keys_.at(config).at(kernel))));
  }

  const TemporaryDirectory directory_;
  const std::vector<KernelConfig> configs_ = request().configs;
  std::vector<std::vector<std::string>> keys_;  // by config, then by attention_kernels()
};

TEST_F(KernelSetTest, TakesTheFirstConfig) {
  ASSERT_EQ(configs_.size(), 3u);
  ASSERT_EQ(configs_[0].prefill, configs_[1].prefill);
  const KernelSet set = find();
  EXPECT_EQ(set.config, configs_[0]);
  EXPECT_EQ(set.kernels().size(), attention_kernels().size());
}

TEST_F(KernelSetTest, TakesTheNextConfigWhereAKernelSpills) {
  make_spill(0, kDecode);
  EXPECT_EQ(find().config, configs_[1]);
  EXPECT_EQ(find().kernels().at(kDecode)->binary().spill_bytes, 0);
  Engine engine(config());
  EXPECT_EQ(Attention::compile(engine, small_spec(), arch())->config(), configs_[1]);
}

// Config 1 has the same prefill kernel as config 0.
TEST_F(KernelSetTest, SkipsConfigsWithTheSameSpillingKernel) {
  make_spill(0, kPrefill);
  EXPECT_EQ(find().config, configs_[2]);
  EXPECT_EQ(find().kernels().at(kPrefill)->binary().spill_bytes, 0);
}

// Every process must choose the config that the compiling process chose, even if some kernels of a
// config are missing.
TEST_F(KernelSetTest, ASpillSelectsTheNextConfigEvenIfAnotherKernelIsMissing) {
  make_spill(0, kPrefill);
  remove(0, kDecode);
  EXPECT_EQ(find().config, configs_[2]);
  EXPECT_NO_THROW(find().kernels());
}

TEST_F(KernelSetTest, ASpillInTheLastConfigIsRefused) {
  make_spill(0, kPrefill);
  make_spill(2, kDecode);
  const KernelSet set = find();
  EXPECT_EQ(set.config, configs_[2]);
  EXPECT_TRUE(set.results[kDecode].spills());
  EXPECT_TRUE(set.results[kPrefill].is_usable());
  EXPECT_TRUE(throws<SpillError>([&] { set.kernels(); },
                                 {"attend_decode for sm_100 spills 8 bytes of registers"}));
}

TEST_F(KernelSetTest, TakesTheFirstConfigIfSpillsAreAllowed) {
  make_spill(0, kPrefill);
  const KernelSet set = find({.allow_spills = true});
  EXPECT_EQ(set.config, configs_[0]);
  EXPECT_EQ(set.kernels().at(kPrefill)->binary().spill_bytes, 8);
}

TEST_F(KernelSetTest, AMissingKernelFailsAlone) {
  const Key key = key_of(0, kDecode);
  remove(0, kDecode);
  const KernelSet set = find({.cache_only = true});
  EXPECT_EQ(set.config, configs_[0]) << "a missing kernel does not count as a spill";
  for (std::size_t i = 0; i < set.results.size(); ++i)
    EXPECT_EQ(set.results[i].is_usable(), i != kDecode) << i;
  EXPECT_EQ(set.results[kDecode].key, key.without(kCompilerField).hex());
  EXPECT_TRUE(throws<CacheError>([&] { set.kernels(); }, {"absent"}));
}

TEST_F(KernelSetTest, SetsShareEqualKernels) {
  Engine engine(config());
  AttentionSpec other = small_spec();
  other.num_q_heads *= 2;
  other.num_kv_heads *= 2;
  const auto sets = compile_sets(engine, {request(), attention_set(other, arch())}, {});
  EXPECT_EQ(sets.at(0).kernels(), sets.at(1).kernels());
}

TEST(KernelSets, ABadSpecIsRefusedBeforeAnythingIsCompiled) {
  AttentionSpec spec = small_spec();
  spec.head_dim = 88;
  EXPECT_TRUE(throws<SpecError>([&] { attention_set(spec, arch()); }, {"head_dim = 88"}));
  EXPECT_TRUE(throws<SpecError>([&] { reposition_set(spec, arch()); }, {"head_dim = 88"}));
}

}  // namespace
}  // namespace lazyrope
