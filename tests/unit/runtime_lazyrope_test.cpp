// Tests runtime/lazyrope.h end to end in the emulator.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <cmath>

#include "runtime/attention/attention.h"
#include "runtime/engine/engine.h"
#include "runtime/lazyrope.h"
#include "tests/support/attention_case.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

constexpr double kTolerance = 0.03;  // for values around 1 in bfloat16

// The process's engine reads the environment at its first use.
std::shared_ptr<const Attention> compile_here(const AttentionSpec& spec, const char* arch) {
  ::setenv("LAZYROPE_CACHE_DIR", LAZYROPE_TEST_CACHE_DIR, /*overwrite=*/1);
  set_nvrtc_directories({LAZYROPE_TEST_NVRTC_DIR});
  return compile(spec, arch);
}

AttentionModel neox_model() {
  AttentionModel model;
  for (int i = 0; i < 32; ++i) {
    model.pairs.emplace_back(i, i + 32);
    model.frequencies.push_back(std::pow(10000.0, -2.0 * i / 64));
  }
  model.visible = [](std::int64_t query, std::int64_t key) { return key <= query; };
  return model;
}

TEST(Lazyrope, AppendAndAttendAgreeWithFp64) {
  AttentionCase steps(small_spec());
  steps.run(*compile_here(small_spec(), "emu:sm_80"));
  EXPECT_LT(steps.error(neox_model()), kTolerance);
}

TEST(Lazyrope, UpdateRefillsTheStep) {
  const auto attention = compile_here(small_spec(), "emu:sm_80");
  AttentionCase steps(small_spec());
  steps.run(*attention);
  const auto step = plan(*attention, steps.step.tensors());
  steps.step.base[2] -= 500;  // all tokens of segment 2 become visible
  steps.step.q_position[12] += 77;
  EXPECT_GT(steps.error(neox_model()), kTolerance)
      << "attend() has not run for the new positions yet";
  update(*step, steps.step.tensors(), nullptr, /*check=*/true);
  attend(*attention, steps.q(), steps.pool(), *step, steps.out(), steps.lse());
  EXPECT_LT(steps.error(neox_model()), kTolerance);
}

TEST(Lazyrope, ZeroCapacityIsTakenFromTheTensors) {
  const auto attention = compile_here(small_spec(), "emu:sm_80");
  AttentionCase steps(small_spec());
  const StepCapacity capacity = plan(*attention, steps.step.tensors())->capacity();
  EXPECT_EQ(capacity.requests, 3);
  EXPECT_EQ(capacity.segments, 5);
  EXPECT_EQ(capacity.query_tokens, 15);
  EXPECT_EQ(
      plan(*attention, steps.step.tensors(), {}, {.query_tokens = 40})->capacity().query_tokens,
      40);
}

TEST(Lazyrope, RequestsOfABatchAgreeWithFp64) {
  const auto attention = compile_here(small_spec(), "emu:sm_80");
  AttentionCase steps(small_spec());
  steps.run(*attention);
  const StepArrays& arrays = steps.step;
  std::vector<Request> requests;
  for (std::size_t r = 0; r + 1 < arrays.q_indptr.size(); ++r) {
    Request& request = requests.emplace_back();
    request.positions = {arrays.q_position.begin() + arrays.q_indptr[r],
                         arrays.q_position.begin() + arrays.q_indptr[r + 1]};
    for (int i = arrays.segment_indptr[r]; i < arrays.segment_indptr[r + 1]; ++i) {
      const auto s = static_cast<std::size_t>(i);
      const int lead = arrays.first_page[s] * 16 + arrays.lead[s] - arrays.start[s];
      const Document document = {.num_tokens = arrays.start[s] + arrays.length[s], .lead = lead};
      request.segments.push_back({document, arrays.base[s], arrays.start[s]});
    }
  }
  StepArrays pages = arrays;
  Batch batch(pages.tensors().pages, Batch::capacity_for(requests));
  batch.fill(requests);
  const auto step = plan(*attention, batch, {}, nullptr, /*check=*/true);
  steps.step.q_position[12] += 77;  // the reference and the requests change in the same way
  requests[1].positions[0] += 77;
  batch.fill(requests);
  update(*step, batch, nullptr, /*check=*/true);
  attend(*attention, steps.q(), steps.pool(), *step, steps.out(), steps.lse());
  EXPECT_LT(steps.error(neox_model()), kTolerance);
}

TEST(Lazyrope, RepositionedTokensEqualTokensAppendedThere) {
  const auto attention = compile_here(small_spec(), "emu:sm_80");
  const AttentionCase steps(small_spec());
  TensorView k = steps.k(), v = steps.v();
  k.shape[0] = v.shape[0] = 5;
  AppendArrays here = {
      .indptr = {0, 5}, .start = {30}, .first_page = {0}, .lead = {14}, .pages = {2, 3}};
  AppendArrays there = {
      .indptr = {0, 5}, .start = {1000}, .first_page = {0}, .lead = {1}, .pages = {0, 1}};
  const std::vector<std::int64_t> shape = {4, 16, 2, 64};
  HostTensor keys(ElementType::kBf16, shape), values(ElementType::kBf16, shape);
  HostTensor other_keys(ElementType::kBf16, shape), other_values(ElementType::kBf16, shape);
  const auto source = plan_append(*attention, here.tensors(), {5});
  const auto target = plan_append(*attention, there.tensors(), {5});
  append(*attention, k, v, {keys.view(), values.view()}, *source);
  append(*attention, k, v, {other_keys.view(), other_values.view()}, *source);
  append(*attention, k, v, {other_keys.view(), other_values.view()}, *target);
  reposition(*compile_reposition(small_spec(), "emu:sm_80"), {keys.view(), values.view()}, *source,
             *target);
  for (std::int64_t i = 0; i < keys.view().elements(); ++i) {
    EXPECT_EQ(values.data<std::uint16_t>()[i], other_values.data<std::uint16_t>()[i]);
    EXPECT_NEAR(from_bf16(keys.data<std::uint16_t>()[i]),
                from_bf16(other_keys.data<std::uint16_t>()[i]), kTolerance);
  }
}

TEST(Lazyrope, ErrorsReachTheCaller) {
  EXPECT_TRUE(throws<SpecError>([] { compile_here(small_spec(), "sm_75"); },
                                {"arch \"sm_75\" is unknown"}));
  AttentionSpec spec = small_spec();
  spec.head_dim = 88;
  EXPECT_TRUE(throws<SpecError>([&] { compile_here(spec, "emu:sm_80"); }, {"head_dim = 88"}));
  const auto attention = compile_here(small_spec(), "emu:sm_80");
  StepTensors nowhere = AttentionCase(small_spec()).step.tensors();
  nowhere.q_indptr.device_type = DeviceType::kOther;
  EXPECT_TRUE(throws<SpecError>([&] { plan(*attention, nowhere); },
                                {"q_indptr is int32 [4]", "it must be on a GPU"}));
}

}  // namespace
}  // namespace lazyrope
