#include <gtest/gtest.h>

#include <thread>
#include <vector>

#include "runtime/base/error.h"
#include "tests/support/fake_device.h"
#include "tests/support/log_capture.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

TEST(Kernel, IsLoadedOnceForEachDevice) {
  const FakeDevice first, second;
  const auto kernel = fake_kernel(KernelKind::kPlan);
  const LoadedKernel* on_first = &kernel->on(first);
  EXPECT_EQ(&kernel->on(first), on_first);
  EXPECT_NE(&kernel->on(second), on_first);
  EXPECT_EQ(&kernel->on(first), on_first);
  EXPECT_EQ(first.loads, 1);
  EXPECT_EQ(second.loads, 1);
}

TEST(Kernel, IsLoadedOnceForManyThreads) {
  const FakeDevice device;
  const auto kernel = fake_kernel(KernelKind::kPlan);
  {
    std::vector<std::jthread> threads;
    for (int i = 0; i < 8; ++i) threads.emplace_back([&] { kernel->on(device); });
  }
  EXPECT_EQ(device.loads, 1);
}

RenderedKernel rendered() { return {KernelKind::kAppend, "text", "entry", 256, 1, 0}; }

TEST(Kernel, ARefusalByTheDriverSaysWhetherTheKernelWasCached) {
  FakeDevice device;
  device.on_load = [] {
    throw DriverError(
        {.call = "cuLibraryLoadData", .code = 200, .name = "CUDA_ERROR_INVALID_IMAGE"});
  };
  Binary binary;
  binary.compiler = "NVRTC 14.2";
  const Kernel cached(rendered(), find_arch("sm_80"), binary,
                      {.from_cache = true, .ready_ms = 0, .may_compile = false}, nullptr);
  EXPECT_TRUE(throws<DriverError>(
      [&] { cached.on(device); },
      {"cuLibraryLoadData failed: CUDA_ERROR_INVALID_IMAGE (200)",
       "append was read from the cache, made by NVRTC 14.2", "`lazyrope cache clear --yes`"}));
  const Kernel compiled(rendered(), find_arch("sm_80"), binary,
                        {.from_cache = false, .ready_ms = 0, .may_compile = true}, nullptr);
  try {
    compiled.on(device);
    FAIL();
  } catch (const DriverError& error) {
    EXPECT_EQ(error.failure().advice, "");
  }
  device.on_load = [] {};
  EXPECT_NO_THROW(cached.on(device)) << "the next call asks the driver again";
}

// Counts compilations. Its binaries name another compiler.
class OtherCompiler : public Compiler {
 public:
  std::vector<std::string> options(const Arch&) const override { return {}; }
  std::string identity() override { return "NVRTC 13.0"; }
  Binary compile(const RenderedKernel&, const Arch&, std::stop_token) override {
    ++compilations;
    if (!reason.empty()) throw CompileError({.what_failed = reason});
    Binary binary;
    binary.compiler = "NVRTC 13.0";
    return binary;
  }
  std::string intermediate(const RenderedKernel&, const Arch&) override { return ""; }
  int compilations = 0;
  std::string reason;  // the text of the error that compile() throws; if empty, it throws none
};

class RefusedKernel : public testing::Test {
 protected:
  void SetUp() override {
    cached_.compiler = "NVRTC 14.2";
    device_.on_load = [this] {
      if (device_.loads == 0 && ++refusals_ == 1)
        throw DriverError({.call = "cuLibraryLoadData", .code = code_, .name = "CUDA_ERROR"});
    };
  }
  Kernel kernel(bool may_compile) {
    return {rendered(),
            find_arch("sm_80"),
            cached_,
            {.from_cache = true, .ready_ms = 0, .may_compile = may_compile},
            compiler_};
  }

  FakeDevice device_;
  Binary cached_;
  std::shared_ptr<OtherCompiler> compiler_ = std::make_shared<OtherCompiler>();
  int code_ = 209;
  int refusals_ = 0;
};

TEST_F(RefusedKernel, IsCompiledAgainAndLogged) {
  const LogCapture log;
  const Kernel refused = kernel(true);
  EXPECT_NO_THROW(refused.on(device_));
  EXPECT_NO_THROW(refused.on(device_));
  EXPECT_EQ(compiler_->compilations, 1);
  EXPECT_TRUE(says(log.text(), {"cuLibraryLoadData failed", "compiled here for this process alone",
                                "append was read from the cache, made by NVRTC 14.2"}));
  EXPECT_EQ(refused.binary().compiler, "NVRTC 13.0");
  EXPECT_FALSE(refused.from_cache());
  const FakeDevice other;
  EXPECT_NO_THROW(refused.on(other));
  EXPECT_EQ(compiler_->compilations, 1) << "another device loads what was compiled";
}

TEST_F(RefusedKernel, ReportsBothErrorsIfItCannotBeCompiled) {
  const LogCapture log;
  compiler_->reason = "NVRTC is not there";
  const Kernel refused = kernel(true);
  EXPECT_TRUE(throws<DriverError>([&] { refused.on(device_); },
                                  {"cuLibraryLoadData failed", "NVRTC is not there",
                                   "made by NVRTC 14.2", "`lazyrope cache clear --yes`"}));
  EXPECT_EQ(log.text(), "");
  EXPECT_TRUE(refused.from_cache());
}

TEST_F(RefusedKernel, IsNotCompiledIfCompilingIsNotAllowed) {
  EXPECT_TRUE(throws<DriverError>([&] { kernel(false).on(device_); }, {"`lazyrope cache clear"}));
  EXPECT_EQ(compiler_->compilations, 0);
}

TEST_F(RefusedKernel, IsNotCompiledIfTheGpuIsOutOfMemory) {
  code_ = 2;
  EXPECT_TRUE(throws<DriverError>([&] { kernel(true).on(device_); }, {"made by NVRTC 14.2"}));
  EXPECT_EQ(compiler_->compilations, 0);
}

TEST(Kernel, ReportsItsSourceArchAndOrigin) {
  const Kernel kernel(rendered(), find_arch("sm_80"), {},
                      {.from_cache = true, .ready_ms = 2.5, .may_compile = true}, nullptr);
  EXPECT_EQ(kernel.name(), "append");
  EXPECT_EQ(kernel.source(), "text");
  EXPECT_EQ(kernel.arch().name, "sm_80");
  EXPECT_TRUE(kernel.from_cache());
  EXPECT_EQ(kernel.ready_ms(), 2.5);
}

}  // namespace
}  // namespace lazyrope
