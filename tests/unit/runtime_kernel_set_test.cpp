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

fs::path file_of(const fs::path& directory, const std::string& key) {
  return directory / (key + ".lzr");
}

void copy_entry(const std::string& key, const fs::path& directory) {
  fs::copy_file(file_of(LAZYROPE_TEST_CACHE_DIR, key), file_of(directory, key),
                fs::copy_options::skip_existing);
}

Key key_named(const fs::path& directory, const std::string& name) {
  const std::vector<ListedEntry> listing = DiskStore(directory).list();
  return Key::from_fields(std::ranges::find(listing, name, &ListedEntry::key)->fields);
}

// Makes the kernel with this key spill, as if another NVRTC had compiled it.
void make_entry_spill(const fs::path& directory, const std::string& name) {
  const DiskStore store(directory);
  const Key key = key_named(directory, name);
  Entry entry = store.load(key).entry.value();
  nlohmann::json facts = nlohmann::json::parse(entry.facts);
  facts["spill_bytes"] = 8;
  entry.facts = facts.dump();
  ASSERT_TRUE(store.store(key, entry).stored);
}

// Returns a config that only reads the directory.
Config without_compiler(const fs::path& directory) {
  Config config = test_config(directory);
  config.policy = CachePolicy::kCacheOnly;
  config.nvrtc_path = "/nonexistent/libnvrtc.so";
  return config;
}

// Makes a cache directory as in a deployment without a compiler. The directory has the kernels of
// all configs of an attention. The first two configs have the same prefill kernel.
class KernelSetTest : public testing::Test {
 protected:
  KernelSetTest() {
    for (const KernelConfig& config : configs_) {
      const auto compiled =
          compile_sets(shared_engine(), {attention_set(small_spec(), arch(), config)}, {}).front();
      for (const KernelResult& result : compiled.results) copy_entry(result.key, directory_.path());
      keys_.push_back({});
      for (const KernelResult& result : compiled.results) keys_.back().push_back(result.key);
    }
  }

  Config config() const { return without_compiler(directory_.path()); }

  KernelSet find(EngineOptions options = {}) const {
    Engine engine(config());
    return compile_sets(engine, {request()}, options).front();
  }

  Key key_of(std::size_t config, std::size_t kernel) const {
    return key_named(directory_.path(), keys_.at(config).at(kernel));
  }

  void make_spill(std::size_t config, std::size_t kernel) const {
    make_entry_spill(directory_.path(), keys_.at(config).at(kernel));
  }

  void remove(std::size_t config, std::size_t kernel) const {
    ASSERT_TRUE(fs::remove(file_of(directory_.path(), keys_.at(config).at(kernel))));
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

// The directory has the kernels of the first config only, so that a search that went on would end
// with another config.
TEST(KernelSetOfRawKeys, ASpillOfTheKernelForRotatedKeysDoesNotChangeTheConfig) {
  const TemporaryDirectory directory;
  AttentionSpec spec = small_spec();
  spec.key_form = KeyForm::kRaw;
  const KernelSetRequest raw = attention_set(spec, find_arch("sm_90a"));
  ASSERT_GT(raw.configs.size(), 1u);
  const auto rotated = static_cast<std::size_t>(
      std::ranges::find(raw.kinds, KernelKind::kAttendRotated) - raw.kinds.begin());
  const KernelSetRequest first = attention_set(spec, find_arch("sm_90a"), raw.configs[0]);
  const KernelSet compiled = compile_sets(shared_engine(), {first}, {}).front();
  for (const KernelResult& result : compiled.results) copy_entry(result.key, directory.path());
  make_entry_spill(directory.path(), compiled.results.at(rotated).key);

  Engine engine(without_compiler(directory.path()));
  const KernelSet found = compile_sets(engine, {raw}, {}).front();
  EXPECT_EQ(found.config, raw.configs[0]);
  EXPECT_TRUE(throws<SpillError>([&] { found.kernels(); }, {"attend_rotated for sm_90a spills"}));
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
