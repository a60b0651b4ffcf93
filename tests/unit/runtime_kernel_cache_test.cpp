#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "runtime/engine/engine.h"
#include "runtime/engine/kernel_cache.h"
#include "runtime/engine/kernel_entry.h"
#include "tests/support/engines.h"
#include "tests/support/log_capture.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

// A compiler that is only a name. No name: it is not installed.
class NamedCompiler : public Compiler {
 public:
  explicit NamedCompiler(std::string name, bool accepts_others = true)
      : name_(std::move(name)), accepts_others_(accepts_others) {}
  std::vector<std::string> options(const Arch&) const override { return {}; }
  std::string identity() override { return name_; }
  bool accepts_others() const override { return accepts_others_; }
  Binary compile(const RenderedKernel&, const Arch&, std::stop_token) override { return {}; }
  std::string intermediate(const RenderedKernel&, const Arch&) override { return ""; }

 private:
  std::string name_;
  bool accepts_others_;
};

const RenderedKernel& rendered() {
  static const RenderedKernel kernel = {KernelKind::kAppend, "source", "tiny", 32, 1, 0, "a spec",
                                        "a config"};
  return kernel;
}

Binary binary_by(const std::string& compiler) {
  Binary binary;
  binary.entry = "tiny";
  binary.arch = "sm_80";
  binary.threads = 32;
  binary.compiler = compiler;
  binary.code = {std::byte{1}};
  return binary;
}

class KernelCacheTest : public testing::Test {
 protected:
  Config config(const fs::path& directory) const {
    Config config = test_config(directory);
    config.log_level = LogLevel::kInfo;
    return config;
  }
  Config config() const { return config(user_.path()); }

  void add(const fs::path& directory, const std::string& compiler) const {
    const KernelCache cache(config(directory));
    ASSERT_TRUE(cache.add(base_, rendered(), binary_by(compiler)).stored.stored);
  }

  // Returns the compiler of the binary that a process with this compiler finds, or the reason why
  // it finds none.
  std::string found_by(const std::string& compiler, const Config& config,
                       bool accepts_others = true) const {
    NamedCompiler present(compiler, accepts_others);
    const CachedBinary found = KernelCache(config).find(base_, rendered(), present);
    return found.binary ? found.binary->compiler : found.miss_reason;
  }
  std::string found_by(const std::string& compiler) const { return found_by(compiler, config()); }

  const TemporaryDirectory user_;
  const TemporaryDirectory image_;
  const Key base_ = KeyBuilder().field("arch", "sm_80").field("source", "source").finish();
};

TEST_F(KernelCacheTest, TheEntryOfThePresentCompilerIsPreferred) {
  EXPECT_EQ(found_by("nvrtc b"), "absent");
  add(user_.path(), "nvrtc a");
  add(user_.path(), "nvrtc c");
  add(user_.path(), "nvrtc b");
  EXPECT_EQ(DiskStore(user_.path()).count(), 3u);
  for (const char* compiler : {"nvrtc a", "nvrtc b", "nvrtc c"})
    EXPECT_EQ(found_by(compiler), compiler);
}

TEST_F(KernelCacheTest, WithoutACompilerAnyEntryIsUsed) {
  add(user_.path(), "nvrtc a");
  EXPECT_EQ(found_by(""), "nvrtc a");
  Config strict = config();
  strict.cache_strict = true;
  EXPECT_EQ(found_by("", strict), "nvrtc a");
}

TEST_F(KernelCacheTest, WhereCompilingIsForbiddenAnyEntryIsUsed) {
  add(user_.path(), "nvrtc a");
  Config only = config();
  only.policy = CachePolicy::kCacheOnly;
  only.cache_strict = true;
  EXPECT_EQ(found_by("nvrtc b", only), "nvrtc a");
}

TEST_F(KernelCacheTest, AnotherCompilersEntryIsUsedAndThatIsLoggedOnce) {
  add(user_.path(), "nvrtc a");
  const KernelCache cache(config());
  NamedCompiler present("nvrtc b");
  const LogCapture log;
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(cache.find(base_, rendered(), present).binary);
  ASSERT_EQ(log.messages().size(), 1u);
  EXPECT_TRUE(says(log.messages()[0], {"warning: tiny is used as nvrtc a compiled it",
                                       "the compiler here is nvrtc b", "LAZYROPE_CACHE_STRICT=1"}));
}

TEST_F(KernelCacheTest, TheEntryOfThePresentCompilerIsNoReasonToLog) {
  add(user_.path(), "nvrtc a");
  add(image_.path(), "nvrtc a");
  const LogCapture log;
  EXPECT_EQ(found_by("nvrtc a"), "nvrtc a");
  EXPECT_EQ(found_by(""), "nvrtc a");
  EXPECT_TRUE(log.messages().empty()) << log.text();
}

TEST_F(KernelCacheTest, StrictMakesAnotherCompilersEntryAMissWithTheReason) {
  add(user_.path(), "nvrtc a");
  Config strict = config();
  strict.cache_strict = true;
  EXPECT_EQ(found_by("nvrtc b", strict),
            "it was compiled by nvrtc a, and the compiler here is nvrtc b");
  EXPECT_EQ(found_by("nvrtc a", strict), "nvrtc a");
  EXPECT_EQ(found_by("nvrtc b", config(), /*accepts_others=*/false),
            "it was compiled by nvrtc a, and the compiler here is nvrtc b");
}

// Earlier versions wrote keys without the compiler.
TEST_F(KernelCacheTest, AnEntryWhoseKeyHasNoCompilerIsFound) {
  ASSERT_TRUE(DiskStore(user_.path()).store(base_, entry_of(binary_by("nvrtc a"))).stored);
  EXPECT_EQ(found_by("nvrtc a"), "nvrtc a");
  EXPECT_EQ(found_by("nvrtc b"), "nvrtc a");
}

TEST_F(KernelCacheTest, AnEntryThatAppearsLaterIsFound) {
  const KernelCache cache(config());
  NamedCompiler present("");
  EXPECT_FALSE(cache.find(base_, rendered(), present).binary);
  add(user_.path(), "nvrtc a");
  EXPECT_TRUE(cache.find(base_, rendered(), present).binary);
}

TEST_F(KernelCacheTest, LayersComeFirstAndCountWhateverCompiledThem) {
  add(image_.path(), "nvrtc a");
  add(user_.path(), "nvrtc b");
  Config layered = config();
  layered.cache_layers = {image_.path().string()};
  layered.cache_strict = true;
  EXPECT_EQ(found_by("nvrtc b", layered), "nvrtc a");
  EXPECT_EQ(found_by("nvrtc b"), "nvrtc b") << "without the layer";
}

TEST_F(KernelCacheTest, AHitInALayerChangesNeitherTheLayerNorTheUsersCache) {
  add(image_.path(), "nvrtc a");
  const fs::path file = fs::directory_iterator(image_.path())->path();
  const auto long_ago = fs::last_write_time(file) - std::chrono::hours(100);
  fs::last_write_time(file, long_ago);
  Config layered = config();
  layered.cache_layers = {"/nonexistent", image_.path().string()};
  EXPECT_EQ(found_by("nvrtc a", layered), "nvrtc a");
  EXPECT_EQ(fs::last_write_time(file), long_ago);
  EXPECT_EQ(DiskStore(user_.path()).count(), 0u);
}

TEST_F(KernelCacheTest, ABadEntryOfALayerIsAMissWithTheReasonUnlessTheUserHasAnother) {
  add(image_.path(), "nvrtc a");
  fs::resize_file(fs::directory_iterator(image_.path())->path(), 200);
  Config layered = config();
  layered.cache_layers = {image_.path().string()};
  EXPECT_NE(found_by("nvrtc a", layered).find("truncated"), std::string::npos);
  add(user_.path(), "nvrtc a");
  EXPECT_EQ(found_by("nvrtc a", layered), "nvrtc a");
}

TEST_F(KernelCacheTest, EntriesNameWhatTheyWereRenderedFrom) {
  const KeyFields facts = origin_facts(rendered());
  EXPECT_EQ(facts.at("spec"), "a spec");
  EXPECT_EQ(facts.at("config"), "a config");
  EXPECT_EQ(facts.at("templates").size(), 64u);
  add(user_.path(), "nvrtc a");
  RenderedKernel other = rendered();
  other.spec = "another spec";
  const Key key = base_.with("source", "another source");
  const auto near = DiskStore(user_.path()).nearest(key, origin_facts(other));
  ASSERT_TRUE(near.has_value());
  EXPECT_EQ(near->differing, (std::vector<std::string>{"compiler", "source", "spec"}));
  EXPECT_EQ(near->fields.at("spec"), "a spec");
}

TEST_F(KernelCacheTest, VerifyCountsTheKernelsOfOtherNvrtcs) {
  add(user_.path(), "nvrtc 13.0-a");
  add(user_.path(), "c++ [12.2]");
  const std::vector<ListedEntry> entries = DiskStore(user_.path()).list();
  EXPECT_EQ(kernels_of_other_nvrtc(entries, "nvrtc 13.0-b"), 1);
  EXPECT_EQ(kernels_of_other_nvrtc(entries, "nvrtc 13.0-a"), 0);
  EXPECT_EQ(kernels_of_other_nvrtc(entries, ""), 0);
}

// Returns a kernel that compiles quickly.
RenderedKernel tiny() {
  return {KernelKind::kAppend,
          "extern \"C\" __global__ void tiny(int* x) { *x = 1; }\n",
          "tiny",
          32,
          1,
          0,
          "a spec",
          "a config"};
}

TEST_F(KernelCacheTest, AnEngineCountsAndExplainsWhatItFinds) {
  const KernelRequest request = {tiny(), &find_arch("sm_80")};
  Engine engine(config());
  EXPECT_FALSE(engine.explain(request).is_found);
  (void)engine.try_kernels({request}, {});
  (void)engine.try_kernels({request}, {});
  engine.clear_cache();
  (void)engine.try_kernels({request}, {});
  EXPECT_EQ(engine.counters().count(Counter::kAbsent), 1u);
  EXPECT_EQ(engine.counters().count(Counter::kCompiled), 1u);
  EXPECT_EQ(engine.counters().count(Counter::kMemoryHits), 1u);
  EXPECT_EQ(engine.counters().count(Counter::kDiskHits), 1u);
  EXPECT_EQ(engine.counters().count(Counter::kFailed), 0u);
  EXPECT_GT(engine.counters().count(Counter::kCompileMicroseconds), 0u);
  EXPECT_TRUE(engine.explain(request).is_found);

  KernelRequest other = request;
  other.rendered.source += "// other\n";
  other.rendered.spec = "another spec";
  const CacheExplanation missing = engine.explain(other);
  EXPECT_FALSE(missing.is_found);
  ASSERT_EQ(missing.differs.size(), 1u);
  EXPECT_EQ(missing.differs[0].name, "spec");
  EXPECT_EQ(missing.differs[0].there, "a spec");
  EXPECT_EQ(missing.differs[0].wanted, "another spec");
}

}  // namespace
}  // namespace lazyrope
