#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "runtime/tuning_inputs.h"
#include "tests/support/attention_case.h"
#include "tests/support/fake_device.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

using Ints = std::vector<std::int32_t>;

TEST(TuningMetadata, HasEachRequestsDocumentsAndItsOwnTokens) {
  const TuningMetadata m =
      metadata_of({.batch = 2, .query_tokens = 3, .context = 40, .doc_tokens = 32});
  EXPECT_EQ(m.q_indptr, (Ints{0, 3, 6}));
  EXPECT_EQ(m.q_position, (Ints{40, 41, 42, 40, 41, 42}));
  EXPECT_EQ(m.segment_indptr, (Ints{0, 3, 6}));
  EXPECT_EQ(m.base, (Ints{0, 32, 40, 0, 32, 40}));
  EXPECT_EQ(m.start, Ints(6, 0));
  EXPECT_EQ(m.length, (Ints{32, 8, 3, 32, 8, 3}));
  EXPECT_EQ(m.first_page, (Ints{0, 2, 3, 4, 6, 7}));
  Ints pages = m.pages;
  EXPECT_FALSE(std::ranges::is_sorted(pages));
  std::ranges::sort(pages);
  EXPECT_EQ(pages, (Ints{0, 1, 2, 3, 4, 5, 6, 7}));
}

TEST(TuningWorkloads, AreDecodeAndPrefill) {
  const auto workloads = tuning_workloads();
  EXPECT_TRUE(std::ranges::any_of(workloads, [](const auto& w) { return w.query_tokens == 1; }));
  EXPECT_TRUE(std::ranges::any_of(workloads, [](const auto& w) { return w.query_tokens >= 512; }));
}

TEST(TuningWorkloads, AreMadeToFitTheMemory) {
  const TuningWorkload w = {.batch = 64, .query_tokens = 1, .context = 4096};
  EXPECT_EQ(fitted(w, small_spec(), 64 * 4112), w);
  EXPECT_EQ(fitted(w, small_spec(), 64 * 4112 - 1).context, 2048);
  const TuningWorkload small = fitted(w, small_spec(), 8 * 1040);
  EXPECT_EQ(small.context, 1024);
  EXPECT_EQ(small.batch, 8);
  EXPECT_EQ(fitted(w, small_spec(), 0).batch, 1) << "whatever there is";
}

TEST(TuningWorkloads, LeaveOutWhatAWindowHides) {
  AttentionSpec spec = small_spec();
  spec.mask = "sliding_window";
  spec.mask_parameters = {{"window", 1500}};
  const TuningWorkload w = {.batch = 1, .query_tokens = 1, .context = 16384};
  EXPECT_EQ(fitted(w, spec, 1 << 20).context, 2048);
  spec.mask_parameters = {{"window", std::numeric_limits<int>::max()}};
  EXPECT_EQ(fitted(w, spec, 1 << 20).context, 16384);
}

double half(std::uint16_t bits) {
  const int exponent = bits >> 10 & 31;
  const double fraction = (bits & 1023) / 1024.0;
  const double size =
      exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
  return bits >> 15 == 0 ? size : -size;
}

TEST(NormalValues, AreOfThatDistributionInBothTypes) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp16}) {
    double sum = 0;
    double squares = 0;
    std::set<double> different;
    const auto values = normal_values(dtype, 20000, 1);
    for (const std::uint16_t bits : values) {
      const double x = dtype == Dtype::kBf16 ? from_bf16(bits) : half(bits);
      sum += x;
      squares += x * x;
      different.insert(x);
    }
    EXPECT_NEAR(sum / 20000, 0.0, 0.03);
    EXPECT_NEAR(squares / 20000, 1.0, 0.05);
    EXPECT_GT(different.size(), 500u);
    EXPECT_NE(normal_values(dtype, 20000, 2), values);
  }
}

TEST(TuningPool, GivesOtherPagesUntilTwiceL2HasBeenRead) {
  const auto device = std::make_shared<FakeDevice>();
  const AttentionSpec spec = small_spec();
  constexpr int kPageBytes = 16 * 2 * 64 * 2;
  device->l2 = 10 * kPageBytes;
  const TuningWorkload workload = {.batch = 1, .query_tokens = 1, .context = 48};  // 4 pages
  TuningPool pool(device, spec, {workload});
  EXPECT_EQ(pool.pages(), 4 + 10) << "of keys, and as many of values";
  std::vector<void*> keys;
  for (int i = 0; i < 4; ++i) {
    const PoolTensors tensors = pool.next(4);
    EXPECT_EQ(tensors.keys.shape[0], 4);
    EXPECT_EQ(tensors.keys.shape[2], 2);
    keys.push_back(tensors.keys.data);
  }
  const auto at = [&](int i) { return static_cast<char*>(keys[0]) + i * 4 * kPageBytes; };
  EXPECT_EQ(keys, (std::vector<void*>{at(0), at(1), at(2), at(0)}));
  EXPECT_EQ(pool.first(4).keys.data, keys[0]);
  EXPECT_NE(pool.first(4).values.data, keys[0]);
  const auto* first = static_cast<const std::uint16_t*>(keys[0]);
  EXPECT_TRUE(std::ranges::any_of(std::span(first, 100), [](auto bits) { return bits != 0; }));
}

TuningResult result_of(std::vector<float> out, std::vector<float> lse) {
  return {std::move(out), std::move(lse)};
}

TEST(TuningDifference, RoundingIsNone) {
  const TuningResult usual = result_of({1.0F, -2.0F, 0.5F, 0.25F}, {3.0F, 4.0F});
  EXPECT_EQ(difference(usual, usual, Dtype::kBf16), "");
  EXPECT_EQ(difference(usual, result_of({1.0078F, -2.0F, 0.5F, 0.25F}, {3.0F, 4.0F}), Dtype::kBf16),
            "");
}

TEST(TuningDifference, NamesTheRowThatIsElsewhere) {
  const TuningResult usual = result_of({1.0F, -2.0F, 0.5F, 0.25F}, {3.0F, 4.0F});
  EXPECT_TRUE(
      says(difference(usual, result_of({1.0F, -2.0F, 0.5F, 0.3F}, {3.0F, 4.0F}), Dtype::kBf16),
           {"row 1 of 2"}));
  EXPECT_TRUE(
      says(difference(usual, result_of({1.0078F, -2.0F, 0.5F, 0.25F}, {3.0F, 4.0F}), Dtype::kFp16),
           {"row 0 of 2"}));
  EXPECT_TRUE(
      says(difference(usual, result_of({1.0F, -2.0F, 0.5F, 0.25F}, {3.0F, 4.01F}), Dtype::kBf16),
           {"row 1 of 2", "its lse by 0.01"}));
  const float nan = std::numeric_limits<float>::quiet_NaN();
  EXPECT_TRUE(
      says(difference(usual, result_of({1.0F, -2.0F, 0.5F, nan}, {3.0F, 4.0F}), Dtype::kBf16),
           {"row 1 of 2"}));
}

}  // namespace
}  // namespace lazyrope
