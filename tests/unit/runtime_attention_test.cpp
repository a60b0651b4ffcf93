#include <gtest/gtest.h>

#include <functional>

#include "codegen/error.h"
#include "runtime/attention/attention.h"
#include "runtime/emulator/device.h"
#include "tests/support/attention_case.h"
#include "tests/support/engines.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

std::shared_ptr<const Attention> compile_for(const char* arch) {
  return Attention::compile(shared_engine(), small_spec(), find_arch(arch));
}

const Attention& emulated() {
  static const auto attention = compile_for("emu:sm_80");
  return *attention;
}

// Legal arguments of attend().
struct Call {
  explicit Call(PoolFormat format = {})
      : steps(small_spec()), step(plan(emulated(), steps.step.tensors(), format)) {}

  void run() const { emulated().attend(q, pool, *step, out, lse, nullptr); }

  AttentionCase steps;
  std::shared_ptr<Step> step;
  TensorView q = steps.q();
  PoolTensors pool = steps.pool();
  TensorView out = steps.out();
  std::optional<TensorView> lse = steps.lse();
};

TEST(Attend, LegalCallPasses) {
  EXPECT_NO_THROW(Call().run());
  Call call;
  call.lse.reset();
  EXPECT_NO_THROW(call.run());
}

TEST(Attend, TheStrideOfASinglePageIsNeverUsed) {
  Call call;
  for (int& page : call.steps.step.pages) page = 0;
  call.pool.keys.shape[0] = call.pool.values.shape[0] = 1;
  call.pool.keys.strides[0] = std::int64_t{1} << 40;
  call.pool.values.strides[0] = 7;
  EXPECT_NO_THROW(call.run());
}

struct BadCall {
  const char* name;
  std::function<void(Call&)> change;
  std::vector<std::string> parts;
};

void PrintTo(const BadCall& row, std::ostream* out) { *out << row.name; }

class BadAttendCalls : public testing::TestWithParam<BadCall> {};

TEST_P(BadAttendCalls, NameTheArgumentAndWhatIsAllowed) {
  Call call;
  GetParam().change(call);
  EXPECT_TRUE(throws<SpecError>([&] { call.run(); }, GetParam().parts));
}

void move(TensorView& tensor, int bytes) { tensor.data = static_cast<char*>(tensor.data) + bytes; }

INSTANTIATE_TEST_SUITE_P(
    Query, BadAttendCalls,
    testing::Values(BadCall{"Dtype",
                            [](auto& c) { c.q.type = ElementType::kFp16; },
                            {"q is float16 [15, 4, 64]", "its dtype must be bfloat16"}},
                    BadCall{
                        "Rank",
                        [](auto& c) { c.q.rank = 2; },
                        {"q is bfloat16 [15, 4]", "its shape must be [tokens, heads, head_dim]"}},
                    BadCall{"Heads",
                            [](auto& c) { c.q.shape[1] = 3; },
                            {"q is bfloat16 [15, 3, 64]", "dimension 1 must be 4 (heads)"}},
                    BadCall{"HeadDim",
                            [](auto& c) { c.q.shape[2] = 32; },
                            {"q is bfloat16 [15, 4, 32]", "dimension 2 must be 64 (head_dim)"}},
                    BadCall{"LastStride",
                            [](auto& c) { c.q.strides[2] = 2; },
                            {"q is bfloat16", "its last dimension must be contiguous"}},
                    BadCall{"TokenStride",
                            [](auto& c) { c.q.strides[0] = 260; },
                            {"[260, 64, 1]", "strides must be positive multiples of 8 elements"}},
                    BadCall{"Alignment",
                            [](auto& c) { move(c.q, 8); },
                            {"q begins at address 0x", "a multiple of 16 bytes"}},
                    BadCall{"Device",
                            [](auto& c) { c.q.device_type = DeviceType::kGpu; },
                            {"q is bfloat16", "on gpu 0; it must be on emulator"}},
                    BadCall{"TokensOfTheStep",
                            [](auto& c) { c.q.shape[0] = c.out.shape[0] = c.lse->shape[0] = 14; },
                            {"q has 14 tokens; the step has 15"}}),
    [](const auto& row) { return row.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Output, BadAttendCalls,
    testing::Values(
        BadCall{"Dtype",
                [](auto& c) { c.out.type = ElementType::kFp32; },
                {"out is float32", "its dtype must be bfloat16"}},
        BadCall{"Tokens",
                [](auto& c) { c.out.shape[0] = 16; },
                {"out is bfloat16 [16, 4, 64]", "dimension 0 must be 15 (tokens, as q)"}},
        BadCall{"HeadStride",
                [](auto& c) { c.out.strides[1] = 66; },
                {"out is bfloat16", "strides must be positive multiples of 8 elements"}},
        BadCall{"Alignment",
                [](auto& c) { move(c.out, 8); },
                {"out begins at address 0x", "a multiple of 16 bytes"}},
        BadCall{"Device",
                [](auto& c) { c.out.device_type = DeviceType::kGpu; },
                {"out is bfloat16", "on gpu 0; it must be on emulator"}},
        BadCall{"IsTheQuery", [](auto& c) { c.out = c.q; }, {"out and q share memory"}},
        BadCall{"IsInThePool",
                [](auto& c) { c.out.data = c.pool.values.data; },
                {"out and v_pool share memory"}},
        BadCall{
            "LseIsTheQuery", [](auto& c) { c.lse->data = c.q.data; }, {"lse and q share memory"}},
        BadCall{"LseIsInTheOutput",
                [](auto& c) {
                  c.lse->data = c.out.data;
                  move(*c.lse, 16);
                },
                {"lse and out share memory"}},
        BadCall{"LseIsInThePool",
                [](auto& c) { c.lse->data = c.pool.keys.data; },
                {"lse and k_pool share memory"}},
        BadCall{"LseDtype",
                [](auto& c) { c.lse->type = ElementType::kBf16; },
                {"lse is bfloat16 [15, 4]", "its dtype must be float32"}},
        BadCall{"LseRank",
                [](auto& c) { c.lse->rank = 1; },
                {"lse is float32 [15]", "its shape must be [tokens, heads]"}},
        BadCall{"LseTokens",
                [](auto& c) { c.lse->shape[0] = 14; },
                {"lse is float32 [14, 4]", "dimension 0 must be 15 (tokens, as q)"}},
        BadCall{"LseHeads",
                [](auto& c) { c.lse->shape[1] = 2; },
                {"lse is float32 [15, 2]", "dimension 1 must be 4 (heads)"}},
        BadCall{"LseDevice",
                [](auto& c) { c.lse->device_type = DeviceType::kGpu; },
                {"lse is float32", "it must be on emulator"}}),
    [](const auto& row) { return row.param.name; });

INSTANTIATE_TEST_SUITE_P(
    Pool, BadAttendCalls,
    testing::Values(
        BadCall{"Dtype",
                [](auto& c) { c.pool.keys.type = ElementType::kFp16; },
                {"k_pool is float16", "its dtype must be bfloat16"}},
        BadCall{"Rank",
                [](auto& c) { c.pool.values.rank = 3; },
                {"v_pool is bfloat16 [12, 16, 2]",
                 "[pages, page_size, kv_heads, head_dim] (layout NHD)"}},
        BadCall{"PageSize",
                [](auto& c) { c.pool.keys.shape[1] = 32; },
                {"k_pool is bfloat16 [12, 32, 2, 64]", "dimension 1 must be 16 (page_size)"}},
        BadCall{"Heads",
                [](auto& c) { c.pool.values.shape[2] = 4; },
                {"v_pool is bfloat16 [12, 16, 4, 64]", "dimension 2 must be 2 (kv_heads)"}},
        BadCall{"HeadDim",
                [](auto& c) { c.pool.keys.shape[3] = 128; },
                {"k_pool is bfloat16", "dimension 3 must be 64 (head_dim)"}},
        BadCall{"Alignment",
                [](auto& c) { move(c.pool.keys, 8); },
                {"k_pool begins at address 0x", "a multiple of 16 bytes"}},
        BadCall{"SlotStride",
                [](auto& c) { c.pool.keys.strides[1] = 132; },
                {"k_pool is bfloat16", "strides must be positive multiples of 8 elements"}},
        BadCall{"Device",
                [](auto& c) { c.pool.values.device_type = DeviceType::kGpu; },
                {"v_pool is bfloat16", "it must be on emulator"}},
        BadCall{"OtherShapes",
                [](auto& c) { c.pool.values.shape[0] = 11; },
                {"k_pool is bfloat16 [12, 16, 2, 64]", "v_pool is bfloat16 [11, 16, 2, 64]",
                 "both must have the same shape and strides"}},
        BadCall{"OtherStrides",
                [](auto& c) { c.pool.values.strides[0] *= 2; },
                {"v_pool is bfloat16 [12, 16, 2, 64] with strides [4096, 128, 64, 1]",
                 "both must have the same shape and strides"}},
        BadCall{"FarPages",
                [](auto& c) { c.pool.keys.strides[0] = c.pool.values.strides[0] = 1LL << 31; },
                {"the pool's page stride is 4294967296 bytes; at most 4294967295 are possible"}},
        BadCall{"FarSlots",
                [](auto& c) { c.pool.keys.strides[1] = c.pool.values.strides[1] = 1LL << 32; },
                {"the pool's slot stride is 8589934592 bytes; at most 4294967295 are possible"}},
        BadCall{"LongPages",
                [](auto& c) { c.pool.keys.strides[1] = c.pool.values.strides[1] = 1LL << 27; },
                {"k_pool is bfloat16", "a page spans 4294967552 bytes, at most 4294967295"}}),
    [](const auto& row) { return row.param.name; });

TEST(Attend, PoolOfAnotherLayoutIsRefused) {
  Call call({.layout = KvLayout::kHnd});
  EXPECT_TRUE(throws<SpecError>([&] { call.run(); },
                                {"k_pool is bfloat16 [12, 16, 2, 64]", "dimension 2 must be 16"}));
  call.pool.keys.rank = 5;
  EXPECT_TRUE(throws<SpecError>([&] { call.run(); }, {"(layout HND)"}));
}

TEST(Attend, KernelsOfAnotherArchAreRefused) {
  const auto attention = compile_for("sm_90a");
  AttentionCase steps(small_spec());
  EXPECT_TRUE(throws<SpecError>([&] { plan(*attention, steps.step.tensors()); },
                                {"the kernels were compiled for sm_90a, but the tensors are on "
                                 "emulator, which needs emu:sm_80",
                                 "compile with arch=\"emu:sm_80\""}));
  EXPECT_TRUE(throws<SpecError>([&] { plan_append(*attention, steps.documents.tensors(), {1}); },
                                {"compiled for sm_90a"}));
  const Call call;
  EXPECT_TRUE(throws<SpecError>(
      [&] { attention->attend(call.q, call.pool, *call.step, call.out, call.lse, nullptr); },
      {"compiled for sm_90a"}));
}

TEST(Attend, StepOfAnotherAttentionIsRefused) {
  Call call;
  const StepShape other = {
      .group_size = 2, .num_kv_heads = 1, .head_dim = 64, .kv_bytes = 2, .mask = "causal"};
  Step step(emulator_device(), {emulated().kernels().front()}, other, emulated().config(), {},
            call.step->capacity(), nullptr);
  step.update(call.steps.step.tensors(), false, nullptr);
  EXPECT_TRUE(throws<SpecError>(
      [&] { emulated().attend(call.q, call.pool, step, call.out, call.lse, nullptr); },
      {"step", "num_kv_heads"}));
}

TEST(Attend, LseMustBeAligned) {
  Call call;
  move(*call.lse, 2);
  EXPECT_TRUE(throws<SpecError>([&] { call.run(); }, {"lse begins at address 0x", "4 bytes"}));
}

class AppendTest : public testing::Test {
 protected:
  void run() { emulated().append(k_, v_, pool_, *step_, nullptr); }
  testing::AssertionResult refused(const std::vector<std::string>& parts) {
    return throws<SpecError>([&] { run(); }, parts);
  }

  AttentionCase steps_{small_spec()};
  std::shared_ptr<AppendStep> step_ =
      plan_append(emulated(), steps_.documents.tensors(), {AttentionCase::kTokens});
  TensorView k_ = steps_.k();
  TensorView v_ = steps_.v();
  PoolTensors pool_ = steps_.pool();
};

TEST_F(AppendTest, LegalCallPasses) {
  EXPECT_NO_THROW(run());
  k_.shape[0] = v_.shape[0] = 0;
  EXPECT_NO_THROW(run());
}

TEST_F(AppendTest, KeysAndValuesOfAnotherShapeAreRefused) {
  k_.type = ElementType::kFp32;
  EXPECT_TRUE(refused({"k is float32 [142, 2, 64]", "its dtype must be bfloat16"}));
  k_ = steps_.k();
  k_.shape[1] = 4;
  EXPECT_TRUE(refused({"k is bfloat16 [142, 4, 64]", "dimension 1 must be 2 (heads)"}));
  k_ = steps_.k();
  v_.shape[0] = 9;
  EXPECT_TRUE(refused({"v is bfloat16 [9, 2, 64]", "dimension 0 must be 142 (tokens, as k)"}));
}

TEST_F(AppendTest, RowsMustBeAlignedToEightBytes) {
  v_.strides[1] = 66;
  EXPECT_TRUE(refused({"v is bfloat16", "strides must be positive multiples of 4 elements"}));
  v_ = steps_.v();
  move(k_, 4);
  EXPECT_TRUE(refused({"k begins at address 0x", "a multiple of 8 bytes"}));
}

TEST_F(AppendTest, MoreRowsThanPlannedAreRefused) {
  k_.shape[0] = v_.shape[0] = 143;
  EXPECT_TRUE(refused({"143 tokens to append", "at most 142"}));
}

TEST_F(AppendTest, ThePoolIsCheckedAsForAttention) {
  pool_.values.shape[0] = 11;
  EXPECT_TRUE(refused({"k_pool", "v_pool", "same shape and strides"}));
}

// An attention of which all kernels but that of prefill are compiled.
struct WithoutPrefill {
  Engine engine{test_config(LAZYROPE_TEST_CACHE_DIR)};
  std::function<void()> compile_prefill;
  std::shared_ptr<const Attention> attention = Attention::compile(
      engine, small_spec(), find_arch("emu:sm_80"),
      {.defer_prefill = [this](std::function<void()> task) { compile_prefill = std::move(task); }});

  bool has_prefill() const {
    const Counters& counters = engine.counters();
    return counters.count(Counter::kDiskHits) + counters.count(Counter::kCompiled) ==
           attention_kernels().size();
  }

  void make_step(int tokens_per_request) const {
    attention->make_step(emulator_device(), {},
                         {.requests = 1,
                          .segments = 1,
                          .query_tokens = tokens_per_request,
                          .tokens_per_request = tokens_per_request},
                         nullptr);
  }
};

TEST(DeferPrefill, OnlyAStepWithRoomForPrefillCompilesItsKernel) {
  const WithoutPrefill deferred;
  deferred.make_step(1);
  deferred.attention->make_append_step(emulator_device(), {}, {1});
  EXPECT_FALSE(deferred.has_prefill());
  deferred.make_step(100);
  EXPECT_TRUE(deferred.has_prefill());
}

TEST(DeferPrefill, TheCallerMayCompileItsKernel) {
  const WithoutPrefill deferred;
  EXPECT_FALSE(deferred.has_prefill());
  deferred.compile_prefill();
  EXPECT_TRUE(deferred.has_prefill());
}

TEST(DeferPrefill, TheKernelsAreThoseOfAFullCompilation) {
  const WithoutPrefill deferred;
  const auto kernels = deferred.attention->kernels();
  ASSERT_EQ(kernels.size(), attention_kernels().size());
  for (const KernelKind kind : attention_kernels())
    EXPECT_EQ(kernels[static_cast<std::size_t>(kind)]->source(), emulated().kernel(kind).source());
}

}  // namespace
}  // namespace lazyrope
