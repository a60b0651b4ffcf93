#include <gtest/gtest.h>

#include <memory>

#include "codegen/error.h"
#include "runtime/attention/reposition.h"
#include "templates/abi/reposition.h"
#include "tests/support/engines.h"
#include "tests/support/fake_device.h"
#include "tests/support/host_tensor.h"
#include "tests/support/metadata.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

constexpr int kTokens = 12;

// Five rows, which move from slot 14 of the pool's third page to slot 1 of its first page.
AppendArrays source_arrays() {
  return {.indptr = {0, 5}, .start = {30}, .first_page = {0}, .lead = {14}, .pages = {2, 3}};
}
AppendArrays target_arrays() {
  return {.indptr = {0, 5}, .start = {1000}, .first_page = {0}, .lead = {1}, .pages = {0, 1}};
}

class RepositionTest : public testing::Test {
 protected:
  static std::unique_ptr<AppendStep> make(std::shared_ptr<const Device> device, PoolFormat format,
                                          int capacity) {
    return std::make_unique<AppendStep>(std::move(device), fake_kernel(KernelKind::kPlanAppend),
                                        format, AppendCapacity{capacity});
  }
  std::unique_ptr<AppendStep> planned(AppendArrays& arrays, PoolFormat format = {},
                                      int capacity = kTokens) const {
    auto step = make(device_, format, capacity);
    step->update(arrays.tensors(), /*check=*/false, nullptr);
    return step;
  }
  testing::AssertionResult refuses(const AppendStep& source, const AppendStep& target,
                                   const std::vector<std::string>& parts) const {
    return throws<SpecError>([&] { mover_->move(pool_, source, target, nullptr); }, parts);
  }
  // Writes the record that the planner would have written; the fake device runs no kernel.
  static void set(const AppendStep& step, int row, AppendRecord record) {
    const_cast<AppendRecord*>(step.records())[row] = record;
  }
  static void clear(const AppendStep& step) {
    for (int i = 0; i < step.capacity(); ++i) set(step, i, {99, -1, 0, 0});
  }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  const std::shared_ptr<const Reposition> mover_ =
      Reposition::compile(shared_engine(), small_spec(), find_arch("sm_90a"));
  HostTensor keys_{ElementType::kBf16, {4, 16, 2, 64}};
  HostTensor values_{ElementType::kBf16, {4, 16, 2, 64}};
  PoolTensors pool_ = {keys_.view(), values_.view()};
  AppendArrays from_ = source_arrays();
  AppendArrays to_ = target_arrays();
};

TEST_F(RepositionTest, LaunchesOverTheWholeCapacity) {
  const auto source = planned(from_), target = planned(to_);
  RepositionParams seen{};
  int ctas = 0;
  device_->on_launch = [&](int count, const void* params) {
    ctas = count;
    seen = *static_cast<const RepositionParams*>(params);
  };
  mover_->move(pool_, *source, *target, nullptr);
  EXPECT_EQ(ctas, 2) << "12 tokens, 2 heads of 16 quads, 256 threads a CTA";
  EXPECT_EQ(seen.pool.keys, keys_.view().data);
  EXPECT_EQ(seen.pool.values, values_.view().data);
  EXPECT_EQ(seen.pool.slot_stride, 2u * 64 * 2);
  EXPECT_EQ(seen.source, source->records());
  EXPECT_EQ(seen.target, target->records());
  EXPECT_EQ(seen.num_tokens, kTokens);
  EXPECT_EQ(seen.num_kv_heads, 2);
}

TEST_F(RepositionTest, StepsOfNoCapacityLaunchNothing) {
  from_.indptr = to_.indptr = {0, 0};
  const auto source = planned(from_, {}, 0), target = planned(to_, {}, 0);
  device_->on_launch = [](int, const void*) { FAIL(); };
  EXPECT_NO_THROW(mover_->move(pool_, *source, *target, nullptr));
}

TEST_F(RepositionTest, MismatchedStepsAreRefused) {
  const auto source = planned(from_);
  EXPECT_TRUE(refuses(*source, *planned(to_, {.page_size = 32}),
                      {"source was planned with page_size = 16 and layout NHD, target with 32 and "
                       "NHD"}));
  EXPECT_TRUE(refuses(*source, *planned(to_, {.layout = KvLayout::kHnd}),
                      {"layout NHD, target with 16 and HND"}));
  EXPECT_TRUE(refuses(*source, *planned(to_, {}, 13),
                      {"source has room for 12 tokens, target for 13", "the same tokens"}));
  EXPECT_TRUE(refuses(*source, *make(device_, {}, kTokens), {"target has no tokens yet"}));
  EXPECT_TRUE(refuses(*make(device_, {}, kTokens), *source, {"source has no tokens yet"}));
  EXPECT_TRUE(refuses(*source, *make(std::make_shared<FakeDevice>(), {}, kTokens),
                      {"source is on fake GPU, target on fake GPU"}));
}

TEST_F(RepositionTest, ThePoolIsCheckedAsForAppend) {
  const auto source = planned(from_), target = planned(to_);
  pool_.values.shape[0] = 3;
  EXPECT_TRUE(refuses(*source, *target, {"k_pool", "v_pool", "same shape and strides"}));
  pool_.values.shape[0] = 4;
  pool_.keys.strides[0] = 0;
  EXPECT_TRUE(refuses(*source, *target, {"k_pool is bfloat16", "memory of its own"}));
}

TEST_F(RepositionTest, KernelOfAnotherArchIsRefused) {
  const auto other = std::make_shared<FakeDevice>("sm_80");
  const auto source = make(other, {}, kTokens);
  source->update(from_.tensors(), /*check=*/false, nullptr);
  EXPECT_TRUE(refuses(*source, *source, {"compiled for sm_90a", "compile with arch=\"sm_80\""}));
}

TEST_F(RepositionTest, CheckingNamesPagesOutsideThePool) {
  const auto source = planned(from_), target = planned(to_);
  clear(*source);
  clear(*target);
  EXPECT_NO_THROW(check_moves(*source, *target, 4, nullptr));
  set(*target, 3, {4, 0, 0, 0});
  EXPECT_TRUE(throws<SpecError>([&] { check_moves(*source, *target, 4, nullptr); },
                                {"row 3 of target is on page 4; the pool has pages 0 to 3"}));
}

TEST_F(RepositionTest, CheckingNamesRowsThatShareASlot) {
  const auto source = planned(from_), target = planned(to_);
  clear(*source);
  clear(*target);
  const auto refused = [&](const std::vector<std::string>& parts) {
    return throws<SpecError>([&] { check_moves(*source, *target, 4, nullptr); }, parts);
  };
  set(*source, 0, {0, 5, 0, 0});
  set(*target, 1, {0, 5, 0, 0});
  EXPECT_NO_THROW(check_moves(*source, *target, 4, nullptr)) << "neither row is moved";
  set(*target, 0, {1, 2, 0, 0});
  set(*source, 1, {2, 7, 0, 0});
  EXPECT_TRUE(refused({"row 0 of source and row 1 of target are both slot 5 of page 0"}));
  set(*target, 1, {1, 2, 0, 0});
  EXPECT_TRUE(refused({"rows 0 and 1 of target are both slot 2 of page 1"}));
  device_->capturing = true;
  EXPECT_TRUE(refused({"check=True"}));
}

}  // namespace
}  // namespace lazyrope
