#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "codegen/error.h"
#include "codegen/rotated_keys.h"
#include "runtime/attention/attention.h"
#include "runtime/emulator/device.h"
#include "runtime/step/step_layout.h"
#include "tests/support/attention_case.h"
#include "tests/support/engines.h"
#include "tests/support/fake_device.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

const Arch& hopper() { return find_arch("emu:sm_90a"); }

AttentionSpec raw_keys_spec() {
  AttentionSpec spec = small_spec();
  spec.key_form = KeyForm::kRaw;
  return spec;
}

KernelConfig raw_keys_config() { return configs(raw_keys_spec().kernel_spec(), hopper()).front(); }

StepShape shape_with_rotation() {
  return {.group_size = 2,
          .num_kv_heads = 2,
          .head_dim = 64,
          .kv_bytes = 2,
          .mask = "causal",
          .rotated = rotated_keys_config(raw_keys_spec().kernel_spec(), hopper())};
}

class RotationTest : public testing::Test {
 protected:
  Step make(StepCapacity capacity, const StepShape& shape = shape_with_rotation()) const {
    return Step(device_,
                {.plan = fake_kernel(KernelKind::kPlan),
                 .plan_rotation = fake_kernel(KernelKind::kPlanRotation)},
                shape, raw_keys_config(), {}, capacity, nullptr);
  }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  const StepCapacity capacity_ = {
      .requests = 2, .segments = 3, .query_tokens = 120, .rotated_tokens = 100};
};

TEST_F(RotationTest, AStepHasScratchInWholeRuns) {
  const Step step = make(capacity_);
  ASSERT_TRUE(step.rotates());
  EXPECT_EQ(step.capacity().rotated_tokens, 100);
  const StepRotation& rotation = step.rotation();
  EXPECT_EQ(rotation.runs.max_runs, 7);
  EXPECT_EQ(rotation.runs.min_rows, raw_keys_config().decode.rows_per_head() + 1);
  const KvPool& scratch = rotation.keys.scratch;
  EXPECT_EQ(scratch.head_stride, 128u);
  EXPECT_EQ(scratch.slot_stride, 256u);
  EXPECT_EQ(scratch.page_stride, 4096u);
  const auto keys = reinterpret_cast<std::uintptr_t>(scratch.keys);
  const auto values = reinterpret_cast<std::uintptr_t>(scratch.values);
  EXPECT_GE(values, keys + 7 * 4096);
  EXPECT_EQ(step_bytes(shape_with_rotation(), raw_keys_config(), capacity_, device_->sm_count()),
            step.bytes());
  StepCapacity without = capacity_;
  without.rotated_tokens = 0;
  EXPECT_FALSE(make(without).rotates());
  EXPECT_GT(step.bytes(), make(without).bytes() + 2 * 7 * 4096);
}

TEST_F(RotationTest, OtherStepsIgnoreTheCapacity) {
  StepShape local = shape_with_rotation();
  local.rotated = {};
  EXPECT_FALSE(make(capacity_, local).rotates());
  EXPECT_EQ(make(capacity_, local).capacity().rotated_tokens, 0);
  StepCapacity decode = capacity_;
  decode.tokens_per_request = 1;
  EXPECT_FALSE(make(decode).rotates());
  EXPECT_EQ(make(decode).capacity().rotated_tokens, 0);
}

TEST_F(RotationTest, IllegalCapacitiesAreNamed) {
  StepCapacity capacity = capacity_;
  capacity.rotated_tokens = -1;
  EXPECT_TRUE(
      throws<SpecError>([&] { make(capacity); }, {"rotated_tokens = -1", "it must be at least 0"}));
  capacity.rotated_tokens = std::numeric_limits<int>::max();
  EXPECT_TRUE(throws<SpecError>([&] { make(capacity); },
                                {"rotated_tokens = 2147483647", "it must be at most 67108864"}));
}

TEST_F(RotationTest, TheScratchIsPlannedAfterTheStep) {
  std::vector<int> ctas;
  PlanRotationParams runs{};
  PlanParams plan{};
  device_->on_launch = [&](int count, const void* params) {
    ctas.push_back(count);
    if (ctas.size() == 2) runs = *static_cast<const PlanRotationParams*>(params);
    if (ctas.size() == 3) plan = *static_cast<const PlanParams*>(params);
  };
  AttentionCase steps(raw_keys_spec());
  StepCapacity capacity = capacity_;
  capacity.requests = 3;
  capacity.segments = 5;
  Step step = make(capacity);
  step.update(steps.step.tensors(), /*check=*/false, nullptr);
  ASSERT_EQ(ctas.size(), 3u);
  EXPECT_EQ(ctas[1], 1);
  EXPECT_EQ(runs.inputs.q_indptr, steps.step.q_indptr.data());
  EXPECT_EQ(runs.page_size.value, 16);
  EXPECT_EQ(runs.unrotated_work_tiles, step.work(Step::kPrefill).work_tiles);
  EXPECT_EQ(ctas[2], plan.num_planners);
  EXPECT_EQ(plan.inputs.q_indptr, runs.rotated.q_indptr);
  EXPECT_EQ(plan.inputs.lead, runs.rotated.lead);
  EXPECT_EQ(plan.inputs.base, steps.step.base.data());
  EXPECT_EQ(plan.inputs.page_size, 16);
  EXPECT_EQ(plan.phase[1].work.num_ctas, 0);
}

TEST(DeferPrefillOfRawKeys, BothKernelsOfPrefillAreCompiledLater) {
  Engine engine(test_config(LAZYROPE_TEST_CACHE_DIR));
  std::function<void()> compile_prefill;
  const auto attention = Attention::compile(
      engine, raw_keys_spec(), hopper(),
      {.defer_prefill = [&](std::function<void()> task) { compile_prefill = std::move(task); }});
  const auto ready = [&] {
    const Counters& counters = engine.counters();
    return counters.count(Counter::kDiskHits) + counters.count(Counter::kCompiled);
  };
  EXPECT_EQ(ready(), 6u);
  compile_prefill();
  EXPECT_EQ(ready(), 8u);
  for (const KernelKind kind : attention_kernels(raw_keys_spec().kernel_spec(), hopper()))
    EXPECT_EQ(attention->kernel(kind).rendered().kind, kind);
}

class PlanRotation : public testing::Test {
 protected:
  // Plans the steps of AttentionCase, of whose requests only the first is one of prefill.
  void plan(int rotated_tokens) {
    step_ = attention_->make_step(emulator_device(), {},
                                  {.requests = 3,
                                   .segments = 5,
                                   .query_tokens = 15,
                                   .tokens_per_request = 0,
                                   .rotated_tokens = rotated_tokens},
                                  nullptr);
    emulator_options().races = true;
    step_->update(steps_.step.tensors(), /*check=*/true, nullptr);
    emulator_options().races = false;
  }
  const StepRotation& rotation() const { return step_->rotation(); }

  // Returns the CTAs that have a work tile.
  static std::ptrdiff_t busy_ctas(const WorkView& work) {
    return std::count_if(work.work_tiles, work.work_tiles + work.num_ctas,
                         [](const WorkTile& tile) { return tile.extent.num_rows > 0; });
  }

  const std::shared_ptr<const Attention> attention_ =
      Attention::compile(shared_engine(), raw_keys_spec(), hopper());
  AttentionCase steps_{raw_keys_spec()};
  std::unique_ptr<Step> step_;
};

// The segments of request 0 have 100 tokens from slot 0, and 9 tokens from slot 13.
TEST_F(PlanRotation, AssignsRunsToTheSegmentsOfPrefill) {
  plan(9 * 16);
  ASSERT_TRUE(step_->rotates());
  EXPECT_EQ(rotation().runs.header->num_runs, 9);
  const RotatedInputs& rotated = rotation().runs.rotated;
  EXPECT_EQ(std::vector(rotated.first_page, rotated.first_page + 5), (std::vector{0, 7, 0, 0, 0}));
  EXPECT_EQ(std::vector(rotated.lead, rotated.lead + 5), (std::vector{0, 13, 0, 0, 0}));
  EXPECT_EQ(std::vector(rotated.length, rotated.length + 5), (std::vector{100, 9, 0, 0, 0}));
  EXPECT_EQ(std::vector(rotated.q_indptr, rotated.q_indptr + 4), steps_.step.q_indptr);
  EXPECT_EQ(std::vector(rotated.pages, rotated.pages + 3), (std::vector{0, 1, 2}));
  const auto expect_run = [&](int run, const RotationRun& expected) {
    const RotationRun& given = rotation().runs.runs[run];
    EXPECT_EQ(given.page, expected.page) << run;
    EXPECT_EQ(given.slot, expected.slot) << run;
    EXPECT_EQ(given.index, expected.index) << run;
    EXPECT_EQ(given.begin, expected.begin) << run;
    EXPECT_EQ(given.end, expected.end) << run;
  };
  expect_run(0, {11, 0, 0, 0, 16});
  expect_run(1, {3, 0, 16, 0, 16});
  expect_run(6, {1, 0, 96, 0, 4});
  expect_run(7, {8, 0, -13, 13, 16});
  expect_run(8, {2, 0, 3, 0, 6});
  EXPECT_EQ(busy_ctas(step_->work(Step::kPrefill)), 0);
  EXPECT_GT(busy_ctas(rotation().plan.phase[0].work), 0);
}

TEST_F(PlanRotation, KeysAreRotatedAtEachUseIfTheScratchDoesNotSuffice) {
  plan(8 * 16);
  EXPECT_EQ(rotation().runs.header->num_runs, 0);
  const RotatedInputs& rotated = rotation().runs.rotated;
  EXPECT_EQ(std::vector(rotated.q_indptr, rotated.q_indptr + 4), (std::vector{0, 0, 0, 0}));
  EXPECT_EQ(std::vector(rotated.length, rotated.length + 5), (std::vector{0, 0, 0, 0, 0}));
  EXPECT_GT(busy_ctas(step_->work(Step::kPrefill)), 0);
  EXPECT_EQ(busy_ctas(rotation().plan.phase[0].work), 0);
}

TEST_F(PlanRotation, TheKernelsHaveNoRaces) {
  const auto writes =
      plan_append(*attention_, steps_.documents.tensors(), {AttentionCase::kTokens});
  append(*attention_, steps_.k(), steps_.v(), steps_.pool(), *writes);
  plan(9 * 16);
  emulator_options().races = true;
  EXPECT_NO_THROW(
      attend(*attention_, steps_.q(), steps_.pool(), *step_, steps_.out(), steps_.lse()));
  emulator_options().races = false;
}

}  // namespace
}  // namespace lazyrope
