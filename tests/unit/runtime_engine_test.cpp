#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <latch>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>

#include "cache/error.h"
#include "cache/file_lock.h"
#include "cache/pins.h"
#include "runtime/base/error.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/kernel_entry.h"
#include "runtime/engine/kernel_set.h"
#include "tests/support/engines.h"
#include "tests/support/log_capture.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;
using Kernels = std::vector<std::shared_ptr<const Kernel>>;

// Returns a kernel that compiles quickly. Another `salt` gives another kernel.
RenderedKernel tiny(const std::string& salt = "1") {
  return {KernelKind::kAppend,
          "extern \"C\" __global__ void tiny(int* x) { *x = " + salt + "; }\n",
          "tiny",
          32,
          1,
          0};
}

// Returns a kernel with an array in local memory, which counts as a spill.
RenderedKernel spilling() {
  return {KernelKind::kAppend,
          "extern \"C\" __global__ void spilling(int* x) {\n"
          "  int kept[16];\n"
          "  for (int i = 0; i < 16; ++i) kept[i] = x[i];\n"
          "  for (int i = 0; i < 16; ++i) kept[x[i] & 15] += i;\n"
          "  *x = kept[*x & 15];\n"
          "}\n",
          "spilling",
          32,
          1,
          0};
}

class EngineTest : public testing::Test {
 protected:
  Config config() const {
    Config config = test_config(directory_.path());
    config.log_level = LogLevel::kInfo;
    return config;
  }
  // Returns a config without a compiler, whose engine can only read the cache.
  Config config_without_nvrtc() const {
    Config without = config();
    without.nvrtc_path = "/nonexistent/libnvrtc.so";
    return without;
  }

  static Kernels get(Engine& engine, std::vector<RenderedKernel> rendered,
                     EngineOptions options = {}) {
    std::vector<KernelRequest> requests;
    for (RenderedKernel& kernel : rendered)
      requests.push_back({std::move(kernel), &find_arch("sm_80")});
    const std::vector<KernelResult> results = engine.try_kernels(requests, options);
    return KernelSet{{}, results}.kernels();
  }
  static std::shared_ptr<const Kernel> get(Engine& engine) { return get(engine, {tiny()}).front(); }

  std::vector<fs::path> entries() const {
    std::vector<fs::path> result;
    for (const auto& file : fs::directory_iterator(directory_.path()))
      if (file.path().extension() == ".lzr") result.push_back(file.path());
    return result;
  }

  // Counts the messages that contain `part`.
  long logged(const std::string& part) const {
    const std::vector<std::string> messages = log_.messages();
    return std::count_if(messages.begin(), messages.end(), [&](const std::string& message) {
      return message.find(part) != std::string::npos;
    });
  }

  const TemporaryDirectory directory_;
  const LogCapture log_;
};

TEST_F(EngineTest, LooksInMemoryThenOnDiskThenCompiles) {
  Engine engine(config());
  const auto compiled = get(engine);
  EXPECT_FALSE(compiled->from_cache());
  EXPECT_EQ(get(engine), compiled) << "the kernel comes from memory";

  engine.clear_cache();
  const auto read = get(engine);
  EXPECT_NE(read, compiled);
  EXPECT_TRUE(read->from_cache());
  EXPECT_EQ(read->binary().code, compiled->binary().code);
  EXPECT_EQ(read->binary().compiler, compiled->binary().compiler);
  EXPECT_EQ(logged("compiled tiny for sm_80"), 1);
}

TEST_F(EngineTest, AHitNeedsNoNvrtc) {
  Engine compiles(config());
  const auto compiled = get(compiles);
  Engine reads(config_without_nvrtc());
  EXPECT_EQ(get(reads)->binary().code, compiled->binary().code);
  EXPECT_TRUE(throws<CompileError>([&] { get(reads, {tiny("2")}); },
                                   {"no usable NVRTC", "/nonexistent/libnvrtc.so"}));
}

TEST_F(EngineTest, WithoutADirectoryKernelsAreKeptInMemoryOnly) {
  Engine engine(test_config());
  const auto compiled = get(engine);
  EXPECT_EQ(get(engine), compiled);
  engine.clear_cache();
  EXPECT_FALSE(get(engine)->from_cache());
}

TEST_F(EngineTest, ResultsAreInTheOrderOfTheRequests) {
  Engine engine(config());
  RenderedKernel slow = tiny("2");
  slow.kind = KernelKind::kAttendPrefill;  // prefill kernels are compiled first
  const Kernels kernels = get(engine, {tiny("1"), slow, tiny("3")}, {.threads = 2});
  ASSERT_EQ(kernels.size(), 3u);
  EXPECT_EQ(kernels[0]->source(), tiny("1").source);
  EXPECT_EQ(kernels[1]->source(), tiny("2").source);
  EXPECT_EQ(kernels[2]->source(), tiny("3").source);
}

// Records the calls of the engine.
class Listener : public KernelListener {
 public:
  void on_begin(std::size_t kernels) override { expected += kernels; }
  void on_result(const KernelRequest& request, const KernelResult& result) override {
    const std::lock_guard lock(mutex_);
    heard.push_back(request.name + (result.is_usable() ? " is there" : " failed"));
  }

  std::size_t expected = 0;
  std::vector<std::string> heard;

 private:
  std::mutex mutex_;
};

TEST_F(EngineTest, EqualRequestsAreOneKernel) {
  Engine engine(config());
  Listener listener;
  const Arch* const arch = &find_arch("sm_80");
  const auto results = engine.try_kernels({{tiny("1"), arch, "first"},
                                           {tiny("wrong"), arch, "second"},
                                           {tiny("1"), arch, "third"},
                                           {tiny("1"), &find_arch("sm_90a"), "fourth"}},
                                          {.threads = 4, .listener = &listener});
  ASSERT_EQ(results.size(), 4u);
  EXPECT_EQ(results[0].kernel, results[2].kernel);
  EXPECT_EQ(results[0].key, results[2].key);
  EXPECT_NE(results[0].key, results[3].key) << "the arch is part of the key";
  EXPECT_EQ(results[3].kernel->arch().name, "sm_90a");
  EXPECT_EQ(results[1].kernel, nullptr);
  EXPECT_TRUE(throws<CompileError>([&] { std::rethrow_exception(results[1].failure); }, {"wrong"}));
  EXPECT_EQ(listener.expected, 3u);
  std::ranges::sort(listener.heard);
  EXPECT_EQ(listener.heard,
            (std::vector<std::string>{"first is there", "fourth is there", "second failed"}));
}

TEST_F(EngineTest, ACacheOnlyRequestCompilesNothing) {
  Engine engine(config());
  const auto look = [&] { return get(engine, {tiny()}, {.cache_only = true}).front(); };
  EXPECT_TRUE(throws<CacheError>([&] { look(); }, {"absent"}));
  EXPECT_TRUE(fs::is_empty(directory_.path()));
  const auto compiled = get(engine);
  EXPECT_EQ(look(), compiled);
  engine.clear_cache();
  fs::resize_file(entries().at(0), 100);
  EXPECT_TRUE(throws<CacheError>([&] { look(); }, {"truncated: 100 bytes"}));
  EXPECT_EQ(logged("warning: "), 0) << log_.text();
  EXPECT_EQ(logged("compiled tiny"), 1);
}

TEST_F(EngineTest, CheckReportsThatNothingCanBeCompiledOrStored) {
  const Arch& arch = find_arch("sm_80");
  EXPECT_NO_THROW(Engine(config()).check_can_compile(arch));
  EXPECT_TRUE(fs::is_empty(directory_.path()));
  EXPECT_TRUE(throws<CompileError>([&] { Engine(config_without_nvrtc()).check_can_compile(arch); },
                                   {"no usable NVRTC"}));
  Arch unknown = arch;
  unknown.name = "sm_10";
  unknown.major = 1;
  EXPECT_TRUE(throws<CompileError>([&] { Engine(config()).check_can_compile(unknown); },
                                   {"does not compile for sm_10; it compiles for sm_", "sm_80"}));
  Config unwritable = config();
  unwritable.cache_dir = "/proc/lazyrope";
  EXPECT_TRUE(throws<CacheError>([&] { Engine(unwritable).check_can_compile(arch); },
                                 {"cannot create directory /proc/lazyrope"}));
}

TEST_F(EngineTest, ThreadsThatAskForOneKernelCompileItOnce) {
  Engine engine(config());
  Kernels found(4);
  std::latch begin(4);
  {
    std::vector<std::jthread> threads;
    for (auto& kernel : found)
      threads.emplace_back([&] {
        begin.arrive_and_wait();
        kernel = get(engine);
      });
  }
  EXPECT_EQ(std::count(found.begin(), found.end(), found[0]), 4);
  EXPECT_EQ(logged("compiled tiny"), 1);
}

TEST_F(EngineTest, EnginesThatShareADirectoryCompileOnce) {
  Engine first(config()), second(config());
  std::latch begin(2);
  {
    std::vector<std::jthread> threads;
    for (Engine* engine : {&first, &second})
      threads.emplace_back([&, engine] {
        begin.arrive_and_wait();
        get(*engine);
      });
  }
  EXPECT_EQ(logged("compiled tiny"), 1);
}

// The test plays the other process: it holds the lock, and copies an entry before the release.
TEST_F(EngineTest, AKernelThatAnotherProcessCompiledMeanwhileComesFromTheCache) {
  const TemporaryDirectory other;
  Engine compiles(test_config(other.path()));
  get(compiles);
  const fs::path made = fs::directory_iterator(other.path())->path();
  // The engine that waits has no compiler, which its lock would name.
  const Key kernel = compiles.store().keys().at(0).without(kCompilerField);
  std::shared_ptr<const Kernel> found;
  {
    auto lock = std::make_unique<FileLock>(
        FileLock::acquire(directory_ / (kernel.hex() + ".lock"), std::chrono::seconds(0)));
    ASSERT_TRUE(lock->is_held());
    Engine waits(config_without_nvrtc());
    std::jthread thread([&] { found = get(waits); });
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    fs::copy(made, directory_ / made.filename().string());
    lock.reset();
  }
  ASSERT_NE(found, nullptr);
  EXPECT_TRUE(found->from_cache());
}

// Runs `body` in a child. Returns whether the child ends within ten seconds, and well.
bool succeeds_in_child(const std::function<bool()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body() ? 0 : 1);
  for (int i = 0; i < 1000; ++i) {
    int status = 0;
    if (::waitpid(child, &status, WNOHANG) == child) return status == 0;
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  return false;
}

// A thread waits for a file lock that the test holds, and so holds the engine's lock of the kernel.
TEST_F(EngineTest, AChildIsNotStoppedByTheLocksOfItsParentsThreads) {
#ifdef __SANITIZE_THREAD__
  GTEST_SKIP() << "ThreadSanitizer ends a child that reuses the id of a thread of its parent";
#endif
  Engine engine(config());
  Engine other(test_config(TemporaryDirectory().path()));
  get(other);
  const std::string key = other.store().list().at(0).key;
  auto lock = std::make_unique<FileLock>(
      FileLock::acquire(directory_ / (key + ".lock"), std::chrono::seconds(0)));
  std::jthread waits([&] { get(engine); });
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  EXPECT_TRUE(succeeds_in_child([&] {
    fs::remove(directory_ / (key + ".lock"));
    return get(engine)->binary().entry == "tiny";
  }));
  lock.reset();
}

TEST_F(EngineTest, AnInterruptionEndsTheWaitsOfAllThreads) {
  Engine engine(config());
  Engine other(test_config(TemporaryDirectory().path()));
  get(other, {tiny("1"), tiny("2")});
  std::vector<FileLock> locks;
  for (const ListedEntry& entry : other.store().list())
    locks.push_back(FileLock::acquire(directory_ / (entry.key + ".lock"), std::chrono::seconds(0)));
  const auto begin = std::chrono::steady_clock::now();
  set_interruption_check([&] {
    if (std::chrono::steady_clock::now() - begin > std::chrono::milliseconds(100))
      throw std::runtime_error("interrupted");
  });
  EXPECT_THROW(get(engine, {tiny("1"), tiny("2")}, {.threads = 2}), std::runtime_error);
  set_interruption_check([] {});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(2));
}

TEST_F(EngineTest, ATimeLimitEndsACall) {
  Engine engine(config());
  std::string long_source = "extern \"C\" __global__ void tiny(float* x) {\n";
  for (int i = 0; i < 20000; ++i)
    long_source += "  x[" + std::to_string(i) + "] *= x[threadIdx.x];\n";
  RenderedKernel slow = tiny();
  slow.source = long_source + "}\n";
  const auto begin = std::chrono::steady_clock::now();
  const EngineOptions options = {.time_limit = TimeLimit(std::chrono::milliseconds(200))};
  EXPECT_TRUE(throws<CompileError>([&] { get(engine, {slow}, options); },
                                   {"the time limit of 0.2 s is over; 0 of 1 kernels are ready"}));
  // The whole compilation takes minutes. NVRTC looks for the stop now and then.
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(20));
}

TEST_F(EngineTest, ALongWaitForALockIsLogged) {
  Engine engine(config());
  Engine other(test_config(TemporaryDirectory().path()));
  get(other);
  const fs::path path = directory_ / (other.store().list().at(0).key + ".lock");
  const FileLock lock = FileLock::acquire(path, std::chrono::seconds(0));
  const EngineOptions options = {.time_limit = TimeLimit(std::chrono::milliseconds(2300))};
  EXPECT_THROW(get(engine, {tiny()}, options), CompileError);
  EXPECT_EQ(logged("warning: waiting for " + path.string()), 1) << log_.text();
}

TEST_F(EngineTest, ADamagedEntryIsReportedAndReplaced) {
  Engine engine(config());
  const auto compiled = get(engine);
  ASSERT_EQ(entries().size(), 1u);
  fs::resize_file(entries()[0], fs::file_size(entries()[0]) - 1);
  engine.clear_cache();
  EXPECT_FALSE(get(engine)->from_cache());
  EXPECT_GE(logged("is not used: "), 1);
  EXPECT_GE(logged("truncated: "), 1);
  engine.clear_cache();
  EXPECT_TRUE(get(engine)->from_cache()) << "a good entry has replaced the damaged one";
}

TEST_F(EngineTest, ADamagedEntryIsReportedOnce) {
  Engine engine(config());
  get(engine);
  fs::resize_file(entries().at(0), 100);
  engine.clear_cache();
  get(engine);
  EXPECT_EQ(logged("is not used: "), 1) << log_.text();
}

TEST_F(EngineTest, AnEntryWithoutAllFactsIsReportedAndReplaced) {
  Engine engine(config());
  get(engine);
  const Key key = Key::from_fields(engine.store().list().at(0).fields);
  ASSERT_TRUE(engine.store().store(key, {R"({"entry":"tiny"})", std::vector<std::byte>(8)}).stored);
  engine.clear_cache();
  EXPECT_FALSE(get(engine)->from_cache());
  EXPECT_GE(logged("is not used: the entry's facts are incomplete"), 1);
  engine.clear_cache();
  EXPECT_TRUE(get(engine)->from_cache());
}

TEST_F(EngineTest, ADirectoryThatCannotBeWrittenCostsAWarning) {
  Config unwritable = config();
  unwritable.cache_dir = "/proc/lazyrope";  // even root cannot write there
  Engine engine(unwritable);
  EXPECT_FALSE(get(engine)->from_cache());
  EXPECT_EQ(logged("warning: tiny is not cached on disk: cannot create directory /proc/lazyrope"),
            1);
  EXPECT_EQ(logged("set LAZYROPE_CACHE_DIR"), 1);
}

TEST_F(EngineTest, CacheOnlyRefusesToCompile) {
  Config cache_only = config();
  cache_only.policy = CachePolicy::kCacheOnly;
  Engine refuses(cache_only);
  const auto ask = [&] { get(refuses); };
  EXPECT_TRUE(throws<CacheError>(
      ask, {"LAZYROPE_POLICY=cache_only forbids compiling tiny",
            "it is not in the cache " + directory_.path().string(), "there is no readable entry",
            "`lazyrope precompile`", "LAZYROPE_POLICY=jit"}));

  Engine compiles(config());
  get(compiles, {tiny("2")});
  EXPECT_TRUE(throws<CacheError>(ask, {"the nearest readable entry differs in: source"}));
  get(compiles);
  EXPECT_TRUE(get(refuses)->from_cache());
}

TEST_F(EngineTest, CacheOnlyWithoutACacheSaysWhatToSet) {
  Config nowhere = config();
  nowhere.policy = CachePolicy::kCacheOnly;
  nowhere.cache_dir.clear();
  Engine refuses(nowhere);
  EXPECT_TRUE(throws<CacheError>([&] { get(refuses); }, {"set LAZYROPE_CACHE_DIR"}));
}

// The cache key depends on the source, not on the launch.
TEST_F(EngineTest, AnEntryForAnotherLaunchIsAMiss) {
  Engine engine(config());
  RenderedKernel kernel = tiny();
  get(engine, {kernel});
  engine.clear_cache();
  kernel.shared_bytes += 16;
  EXPECT_FALSE(get(engine, {kernel})[0]->from_cache());
  EXPECT_EQ(logged("it is for a launch of tiny by "), 1) << log_.text();
}

TEST_F(EngineTest, AKernelThatSpillsIsRefusedUnlessAllowed) {
  Engine engine(config());
  const auto refused = [&] { get(engine, {spilling()}); };
  EXPECT_TRUE(throws<CompileError>(refused, {"append for sm_80 spills 64 bytes of registers",
                                             "choose another config, or allow spills"}));
  EXPECT_EQ(get(engine, {spilling()}, {.allow_spills = true})[0]->binary().spill_bytes, 64);
  EXPECT_TRUE(throws<CompileError>(refused, {"spills 64 bytes"})) << "from memory";
  engine.clear_cache();
  EXPECT_TRUE(throws<CompileError>(refused, {"spills 64 bytes"})) << "from disk";
}

TEST_F(EngineTest, AFailureConcernsOneKernelOfOneCall) {
  Engine engine(config());
  EXPECT_TRUE(throws<CompileError>([&] { get(engine, {tiny(), tiny("wrong"), tiny("3")}); },
                                   {"tiny.cu", "wrong"}));
  EXPECT_EQ(get(engine, {tiny(), tiny("3")}).size(), 2u);
  EXPECT_THROW(get(engine, {tiny("wrong")}), CompileError);
}

TEST_F(EngineTest, EntriesBeyondTheLimitAreRemovedAndLogged) {
  Config small = config();
  small.cache_max_bytes = 1;
  Engine engine(small);
  set_log_level(LogLevel::kInfo);
  get(engine);
  EXPECT_TRUE(entries().empty());
  EXPECT_EQ(logged("warning: the cache's limit is too small: LAZYROPE_CACHE_MAX_BYTES=1, "), 1)
      << log_.text();
  EXPECT_EQ(logged("info: removed 1 of the cache's entries"), 1) << log_.text();
}

TEST_F(EngineTest, PinnedEntriesBeyondTheLimitStayAndAreLogged) {
  Config small = config();
  Engine first(small);
  get(first);
  write_pin(directory_.path(), {"all", {entries().at(0).stem().string()}});
  small.cache_max_bytes = 1;
  Engine engine(small);
  get(engine, {tiny("2")});
  EXPECT_EQ(entries().size(), 1u);
  EXPECT_EQ(logged("warning: pinned kernels of the cache exceed LAZYROPE_CACHE_MAX_BYTES by"), 1)
      << log_.text();
}

TEST_F(EngineTest, WithinTheLimitNothingIsRemoved) {
  Engine engine(config());
  set_log_level(LogLevel::kInfo);
  get(engine);
  EXPECT_EQ(entries().size(), 1u);
  EXPECT_EQ(logged("too small") + logged("removed"), 0) << log_.text();
}

TEST_F(EngineTest, SourcesAreWrittenToTheDumpDirectory) {
  Config dumps = config();
  dumps.dump_dir = (directory_ / "a" / "b").string();
  Engine engine(dumps);
  get(engine);
  const fs::path file = fs::directory_iterator(dumps.dump_dir)->path();
  EXPECT_TRUE(file.filename().string().starts_with("tiny.sm_80.")) << file;
  std::ifstream in(file);
  EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), tiny().source);
}

TEST_F(EngineTest, ADumpThatCannotBeWrittenCostsAWarning) {
  std::ofstream(directory_ / "file") << "text";
  Config dumps = config();
  dumps.dump_dir = (directory_ / "file").string();
  Engine engine(dumps);
  EXPECT_NO_THROW(get(engine));
  EXPECT_EQ(logged("warning: cannot write " + dumps.dump_dir), 1) << log_.text();
}

Binary example_binary() {
  return {"tiny", "sm_80", 32, 1024, 40, 8, "nvrtc 13.0", 25.5, {std::byte{1}, std::byte{2}}};
}

TEST(BinaryEntry, ReadsBackAsItWasWritten) {
  const Binary binary = example_binary();
  const Binary read = binary_of(entry_of(binary));
  EXPECT_EQ(read.entry, "tiny");
  EXPECT_EQ(read.arch, "sm_80");
  EXPECT_EQ(read.threads, 32);
  EXPECT_EQ(read.shared_bytes, 1024);
  EXPECT_EQ(read.registers, 40);
  EXPECT_EQ(read.spill_bytes, 8);
  EXPECT_EQ(read.compiler, "nvrtc 13.0");
  EXPECT_EQ(read.compile_ms, 25.5);
  EXPECT_EQ(read.code, binary.code);
}

TEST(BinaryEntry, EveryFactIsNeededWithItsType) {
  const Entry whole = entry_of(example_binary());
  const nlohmann::json facts = nlohmann::json::parse(whole.facts);
  for (const auto& fact : facts.items()) {
    nlohmann::json fewer = facts;
    fewer.erase(fact.key());
    const Entry without = {fewer.dump(), whole.payload};
    EXPECT_TRUE(throws<CacheError>([&] { binary_of(without); },
                                   {"the entry's facts are incomplete", fact.key()}));
    for (const char* value : {"[]", "{}", "null", "{\"a\":1}"}) {
      nlohmann::json changed = facts;
      changed[fact.key()] = nlohmann::json::parse(value);
      const Entry other_type = {changed.dump(), whole.payload};
      EXPECT_TRUE(throws<CacheError>([&] { binary_of(other_type); }, {"facts are incomplete"}));
    }
  }
  EXPECT_THROW(binary_of({"null", {}}), CacheError);
}

TEST(BinaryEntry, ACountIsAWholeNumberThatFits) {
  const Entry whole = entry_of(example_binary());
  for (const char* name : {"threads", "shared_bytes", "registers", "spill_bytes"}) {
    for (const char* value :
         {"true", "-1", "1.5", "1e300", "2147483648", "18446744073709551615", "1e999", "\"32\""}) {
      nlohmann::json facts = nlohmann::json::parse(whole.facts);
      facts[name] = nlohmann::json::parse(value, nullptr, /*allow_exceptions=*/false);
      const Entry changed = {facts.dump(), whole.payload};
      EXPECT_TRUE(throws<CacheError>([&] { binary_of(changed); },
                                     {"the entry's facts are incomplete", name}))
          << value;
    }
  }
}

}  // namespace
}  // namespace lazyrope
