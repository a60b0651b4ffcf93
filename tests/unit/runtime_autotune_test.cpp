// Tests tuning on a fake device and in the emulator. The kernels of the fake device take the times
// and write the results that a test defines.
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>

#include "cache/error.h"
#include "codegen/config_variants.h"
#include "codegen/error.h"
#include "runtime/base/config.h"
#include "runtime/base/error.h"
#include "runtime/emulator/device.h"
#include "runtime/engine/devices.h"
#include "runtime/tuning/tuned.h"
#include "templates/abi/attend.h"
#include "tests/support/engines.h"
#include "tests/support/fake_device.h"
#include "tests/support/log_capture.h"
#include "tests/support/specs.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

// A spec with few variants of its config.
AttentionSpec tuned_spec() {
  AttentionSpec spec = small_spec();
  spec.head_dim = 192;
  spec.rope = neox(192);
  return spec;
}

class AutotuneTest : public testing::Test {
 protected:
  void SetUp() override {
    device_->on_kernel = [this](const Binary& binary, int ctas, const void* params) {
      if (!binary.entry.starts_with("lazyrope_attend")) return;
      const double us = us_of(binary, ctas);
      if (us < 0) throw DriverError({.text = "this launch fails"});
      device_->clock_us += us;
      write_results(*static_cast<const AttendParams*>(params), value_of(binary, ctas));
    };
  }

  static void write_results(const AttendParams& params, std::uint16_t value) {
    const auto tokens = static_cast<std::size_t>(tokens_);
    std::ranges::fill(std::span(static_cast<std::uint16_t*>(params.out.data), tokens * 4 * 192),
                      to_bf16_of(1));
    static_cast<std::uint16_t*>(params.out.data)[7] = value;
    std::ranges::fill(std::span(params.lse.data, tokens * 4), 2.0F);
  }

  static std::uint16_t to_bf16_of(int small) {
    return static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(static_cast<float>(small)) >>
                                      16);
  }

  // Returns true if the launched kernel is that of the config.
  bool is(const TileConfig& config, const Binary& binary, int ctas) const {
    return binary.threads == config.threads(192) &&
           binary.shared_bytes == config.shared_bytes(192) &&
           ctas == config.ctas_per_sm * device_->sms;
  }

  std::vector<KernelConfig> decode_configs() const {
    const KernelSpec spec = tuned_spec().kernel_spec();
    const Arch& arch = device_->arch();
    return decode_variants(configs(spec, arch).front(), spec, arch);
  }

  Tuning tune() { return autotune(shared_engine(), tuned_spec(), device_, options_); }

  static const TuningTask& task(const Tuning& tuning, const std::string& name) {
    return *std::ranges::find(tuning.tasks, name, &TuningTask::name);
  }

  static constexpr int tokens_ = 2;
  std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  AutotuneOptions options_ = {
      .engine = {},
      .seconds = 30,
      .workloads = {{.batch = 2, .query_tokens = 1, .context = 64, .doc_tokens = 32}}};
  std::function<double(const Binary&, int)> us_of = [](const Binary&, int) { return 100.0; };
  std::function<std::uint16_t(const Binary&, int)> value_of = [](const Binary&, int) {
    return to_bf16_of(1);
  };
};

TEST_F(AutotuneTest, FastestConfigIsChosen) {
  const KernelConfig fast = decode_configs().at(2);
  const KernelConfig slow = decode_configs().at(3);
  us_of = [&](const Binary& binary, int ctas) {
    if (is(fast.decode, binary, ctas)) return 90.0;
    return is(slow.decode, binary, ctas) ? 130.0 : 100.0;
  };
  const Tuning tuning = tune();
  EXPECT_EQ(tuning.config, fast);
  const TuningTask& decode = task(tuning, "decode");
  EXPECT_EQ(decode.workloads, options_.workloads);
  ASSERT_EQ(decode.trials.size(), decode_configs().size());
  EXPECT_EQ(decode.chosen, 2u);
  EXPECT_NEAR(decode.trials[2].gain, 0.1, 1e-9);
  EXPECT_NEAR(decode.trials[3].gain, -0.3, 1e-9);
  EXPECT_EQ(decode.trials[0].us, std::vector{100.0});
  EXPECT_EQ(decode.trials[2].us, std::vector{90.0});
  EXPECT_EQ(task(tuning, "min_split_blocks").chosen, 0u);
  EXPECT_EQ(tuning.gpu, "fake GPU");
  EXPECT_EQ(tuning.driver, "fake driver");
  EXPECT_EQ(tuning.sm_count, 4);
  EXPECT_TRUE(says(tuning.compiler, {"nvrtc 1"}));
  EXPECT_GE(tuning.seconds, tuning.compile_seconds + tuning.measure_seconds);
}

TEST_F(AutotuneTest, DefaultStaysWithinTheNoise) {
  const std::vector<KernelConfig> configs = decode_configs();
  us_of = [&](const Binary& binary, int ctas) {
    return is(configs.at(1).decode, binary, ctas) ? 99.5 : 100.0;
  };
  const Tuning tuning = tune();
  EXPECT_EQ(tuning.config, configs.front());
  EXPECT_EQ(task(tuning, "decode").chosen, 0u);
}

TEST_F(AutotuneTest, ConfigWithOtherResultsIsRejectedWithAWarning) {
  const std::vector<KernelConfig> configs = decode_configs();
  us_of = [&](const Binary& binary, int ctas) {
    return is(configs.at(1).decode, binary, ctas) ? 10.0 : 100.0;
  };
  value_of = [&](const Binary& binary, int ctas) {
    return to_bf16_of(is(configs.at(1).decode, binary, ctas) ? 2 : 1);
  };
  const LogCapture log;
  const Tuning tuning = tune();
  EXPECT_EQ(tuning.config, configs.front());
  EXPECT_TRUE(says(task(tuning, "decode").trials[1].rejection, {"row 0 of 8 differs"}));
  EXPECT_TRUE(
      says(log.text(), {"warning: tuning rejects a config (" + describe(configs.at(1)) + ")",
                        "row 0 of 8 differs", "please report this"}));
}

TEST_F(AutotuneTest, ConfigThatCannotBeLaunchedIsRejected) {
  const std::vector<KernelConfig> configs = decode_configs();
  us_of = [&](const Binary& binary, int ctas) {
    return is(configs.at(1).decode, binary, ctas) ? -1.0 : 100.0;
  };
  const LogCapture log;
  EXPECT_EQ(task(tune(), "decode").trials[1].rejection, "this launch fails");
  us_of = [](const Binary&, int) { return -1.0; };
  EXPECT_TRUE(throws<DriverError>([&] { tune(); }, {"this launch fails"}))
      << "a failure of the default is an error";
}

TEST_F(AutotuneTest, DefaultThatComputesNanIsAnError) {
  value_of = [](const Binary&, int) { return std::uint16_t{0x7fc0}; };
  EXPECT_TRUE(throws<std::runtime_error>([&] { tune(); }, {"row 0 of 8 differs"}));
}

TEST_F(AutotuneTest, KernelsWithoutAWorkloadAreNotMeasured) {
  EXPECT_TRUE(
      std::ranges::none_of(tune().tasks, [](const TuningTask& p) { return p.name == "prefill"; }));
}

TEST_F(AutotuneTest, FewRoundsAreMeasuredWithoutTime) {
  options_.seconds = 0;
  int launches = 0;
  us_of = [&](const Binary&, int) {
    ++launches;
    return 100.0;
  };
  const TuningTask decode = task(tune(), "decode");
  EXPECT_EQ(decode.trials.front().us, std::vector{100.0});
  EXPECT_LT(launches, 600);
}

TEST_F(AutotuneTest, ProgressIsReported) {
  std::string reported;
  options_.progress = [&](std::string_view what) { reported += std::string(what) + "\n"; };
  tune();
  const std::size_t configs = decode_configs().size();
  EXPECT_TRUE(
      says(reported, {"the default config", "compiling " + std::to_string(configs) + " configs",
                      "decode: " + std::to_string(configs) + " configs on 2 x 1 over 64",
                      "min_split_blocks: 4 configs on 2 x 1 over 64"}));
}

TEST_F(AutotuneTest, ListenerReceivesTheKernelsOfEachConfig) {
  struct Names : KernelListener {
    void on_begin(std::size_t) override {}
    void on_result(const KernelRequest& request, const KernelResult&) override {
      const std::lock_guard lock(mutex);
      names.insert(request.name);
    }
    std::mutex mutex;
    std::set<std::string> names;
  } listener;
  options_.engine.listener = &listener;
  tune();
  EXPECT_TRUE(listener.names.contains("default config"));
  for (const KernelConfig& config : decode_configs())
    EXPECT_TRUE(std::ranges::any_of(listener.names, [&](const std::string& name) {
      return name.starts_with(describe(config.decode));
    })) << describe(config.decode);
}

struct TunedPool {
  std::optional<Dtype> kv_dtype = {};
  bool states = false;
};

class AutotuneInTheEmulator : public testing::TestWithParam<TunedPool> {};

INSTANTIATE_TEST_SUITE_P(Pools, AutotuneInTheEmulator,
                         testing::Values(TunedPool{}, TunedPool{.kv_dtype = Dtype::kFp8E4m3},
                                         TunedPool{.kv_dtype = Dtype::kFp8E5m2},
                                         TunedPool{.states = true}));

// These kernels are compiled: variants of every shape compute the same results. `make soak` also
// runs pools of 8 bits and of attention states.
TEST_P(AutotuneInTheEmulator, NoConfigIsRejected) {
  const TunedPool& pool = GetParam();
  if ((pool.kv_dtype || pool.states) && !process_environment("LAZYROPE_SOAK"))
    GTEST_SKIP() << "LAZYROPE_SOAK=1 runs this test";
  AttentionSpec spec = tuned_spec();
  spec.kv_dtype = pool.kv_dtype;
  spec.states = pool.states;
  const LogCapture log;
  const AutotuneOptions options = {
      .engine = {},
      .seconds = 0,
      .workloads = {{.batch = 2, .query_tokens = 1, .context = 100, .doc_tokens = 70},
                    {.batch = 1, .query_tokens = 20, .context = 60, .doc_tokens = 35}}};
  const Tuning tuning = autotune(shared_engine(), spec, emulator_device(), options);
  ASSERT_EQ(tuning.tasks.size(), 3u);
  for (const TuningTask& task : tuning.tasks)
    for (const TuningTrial& trial : task.trials) EXPECT_EQ(trial.rejection, "") << trial.name;
  EXPECT_EQ(log.text(), "");
  EXPECT_TRUE(is_legal(tuning.config, spec.kernel_spec(), find_arch("emu:sm_80")));
}

class StoredTuning : public AutotuneTest {
 protected:
  // Copies the kernels of the shared cache to the test's own cache, so that few are compiled.
  void SetUp() override {
    AutotuneTest::SetUp();
    tune();
    for (const auto& file : std::filesystem::directory_iterator(LAZYROPE_TEST_CACHE_DIR))
      if (file.path().extension() == ".lzr")
        std::filesystem::copy(file.path(), root_ / file.path().filename().string());
  }

  std::shared_ptr<const Attention> tuned(Engine& engine) {
    const KernelConfig fast = decode_configs().at(2);
    us_of = [this, fast](const Binary& binary, int ctas) {
      return is(fast.decode, binary, ctas) ? 90.0 : 100.0;
    };
    return tuned_attention(engine, tuned_spec(), device_, options_);
  }
  std::shared_ptr<const Attention> stored(Engine& engine) const {
    return stored_attention(engine, tuned_spec(), *device_, {});
  }
  Config config(CachePolicy policy = CachePolicy::kJit) const {
    Config config = test_config(root_.path());
    config.policy = policy;
    return config;
  }

  TemporaryDirectory root_;
};

TEST_F(StoredTuning, IsUsedByTheNextProcessWithoutMeasuring) {
  Engine first(config());
  EXPECT_EQ(stored(first), nullptr);
  const auto attention = tuned(first);
  EXPECT_EQ(attention->config(), decode_configs().at(2));
  ASSERT_NE(attention->tuning(), nullptr);

  us_of = [](const Binary&, int) -> double { throw std::logic_error("a kernel was launched"); };
  for (const CachePolicy policy : {CachePolicy::kJit, CachePolicy::kCacheOnly}) {
    Engine next(config(policy));
    const auto again = stored(next);
    ASSERT_NE(again, nullptr);
    EXPECT_EQ(again->config(), attention->config());
    EXPECT_EQ(*again->tuning(), *attention->tuning());
    EXPECT_TRUE(std::ranges::all_of(again->kernels(), &Kernel::from_cache));
    EXPECT_EQ(stored(next)->tuning(), again->tuning()) << "from memory";
  }
}

// The kernels are compiled once, and each device loads them.
TEST_F(StoredTuning, IsUsedByAnotherDeviceOfTheSameName) {
  Engine engine(config());
  const auto attention = tuned(engine);
  us_of = [](const Binary&, int) -> double { throw std::logic_error("a kernel was launched"); };
  const std::shared_ptr<FakeDevice> first = std::exchange(device_, std::make_shared<FakeDevice>());
  device_->index = 1;
  const auto other = stored(engine);
  ASSERT_NE(other, nullptr);
  EXPECT_EQ(other->config(), attention->config());
  EXPECT_EQ(*other->tuning(), *attention->tuning());
  EXPECT_EQ(other->kernels(), attention->kernels()) << "kernels were compiled again";
}

TEST_F(StoredTuning, OfAnotherDriverIsNotUsed) {
  Engine first(config());
  tuned(first);
  device_->driver_name = "newer driver";
  const LogCapture log;
  Engine next(config());
  EXPECT_EQ(stored(next), nullptr);
  EXPECT_EQ(stored(next), nullptr);
  EXPECT_EQ(log.messages().size(), 1u) << "logged once: " << log.text();
  EXPECT_TRUE(says(log.text(), {"measured with driver fake driver, and this is newer driver",
                                "lazyrope autotune"}));
}

TEST_F(StoredTuning, OfAnotherCompilerIsNotUsed) {
  Engine first(config());
  const auto attention = tuned(first);
  auto tuning = std::make_shared<Tuning>(*attention->tuning());
  tuning->compiler = "nvrtc 11.8-old";
  first.tunings().store(tuning_key(tuned_spec(), *device_), tuning);
  const LogCapture log;
  Engine next(config());
  EXPECT_EQ(stored(next), nullptr);
  EXPECT_TRUE(
      says(log.text(), {"measured with kernels of nvrtc 11.8-old, and these are of nvrtc"}));
}

TEST_F(StoredTuning, WithoutKernelsIsNotUsedIfCompilingIsForbidden) {
  Engine first(config());
  tuned(first);
  for (const ListedEntry& entry : first.store().list())
    if (nlohmann::json::parse(entry.facts)["entry"] != kTuningEntry)
      std::filesystem::remove(root_ / (entry.key + ".lzr"));
  const LogCapture log;
  Engine next(config(CachePolicy::kCacheOnly));
  EXPECT_EQ(stored(next), nullptr);
  EXPECT_TRUE(says(log.text(), {"is not used", "LAZYROPE_POLICY=cache_only forbids compiling"}));
}

TEST_F(StoredTuning, WithAnIllegalConfigIsNotUsed) {
  Engine first(config());
  auto tuning = std::make_shared<Tuning>(*tuned(first)->tuning());
  tuning->config.decode.stages = 99;
  first.tunings().store(tuning_key(tuned_spec(), *device_), tuning);
  const LogCapture log;
  EXPECT_EQ(stored(first), nullptr);
  EXPECT_TRUE(says(log.text(), {"decode.stages = 99"}));
}

TEST_F(StoredTuning, TuningIsRefusedIfCompilingIsForbidden) {
  Engine engine(config(CachePolicy::kCacheOnly));
  EXPECT_TRUE(throws<CacheError>([&] { tuned(engine); },
                                 {"LAZYROPE_POLICY=cache_only forbids", "lazyrope autotune"}));
}

TEST(TuningKey, DependsOnSpecAndGpu) {
  FakeDevice device;
  const auto key = [&](const AttentionSpec& spec) { return tuning_key(spec, device).hex(); };
  const std::string baseline = key(small_spec());
  EXPECT_EQ(key(small_spec()), baseline);
  AttentionSpec spec = small_spec();
  spec.scale = 0.5;
  EXPECT_EQ(key(spec), baseline) << "no kernel depends on it";
  spec.softcap = 30;
  EXPECT_NE(key(spec), baseline);
  spec = small_spec();
  spec.num_q_heads *= 2;
  spec.num_kv_heads *= 2;
  EXPECT_NE(key(spec), baseline);
  device.sms = 8;
  EXPECT_NE(key(small_spec()), baseline);
  device.driver_name = "newer driver";
  device.sms = 4;
  EXPECT_EQ(key(small_spec()), baseline) << "the driver is in the record, not in the key";
  const FakeDevice other("sm_80");
  EXPECT_NE(tuning_key(small_spec(), other).hex(), baseline);
}

TEST(CompileFor, RefusesWhatCannotBeTuned) {
  const auto compile = [](std::string_view arch, const CompileOptions& options = {}) {
    compile_for(shared_engine(), small_spec(), arch, Tune::kMeasure, options);
  };
  EXPECT_TRUE(throws<SpecError>([&] { compile("emu:sm_80"); }, {"emu:sm_80", "on a GPU"}));
  EXPECT_TRUE(throws<SpecError>([&] { compile("sm_1"); }, {"sm_1", "there are"}));
  const KernelConfig config = configs(small_spec().kernel_spec(), find_arch("sm_90a")).front();
  EXPECT_TRUE(throws<SpecError>([&] { compile("sm_90a", {.config = config}); },
                                {"config", "one of the two"}));
}

TEST(CompileFor, ReturnsTheDefaultConfigWithoutTuning) {
  const KernelConfig baseline = configs(small_spec().kernel_spec(), find_arch("emu:sm_80")).front();
  for (const Tune tune : {Tune::kNever, Tune::kStored}) {
    const auto attention = compile_for(shared_engine(), small_spec(), "emu:sm_80", tune, {});
    EXPECT_EQ(attention->config(), baseline);
    EXPECT_EQ(attention->tuning(), nullptr);
  }
}

}  // namespace
}  // namespace lazyrope
