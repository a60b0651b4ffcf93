#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <set>

#include "runtime/tuning/tuning_inputs.h"
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

TEST(TuningWorkloads, AreReducedToFitTheMemory) {
  const TuningWorkload w = {.batch = 64, .query_tokens = 1, .context = 4096};
  EXPECT_EQ(fitted(w, small_spec(), 64 * 4112), w);
  EXPECT_EQ(fitted(w, small_spec(), 64 * 4112 - 1).context, 2048);
  const TuningWorkload small = fitted(w, small_spec(), 8 * 1040);
  EXPECT_EQ(small.context, 1024);
  EXPECT_EQ(small.batch, 8);
  EXPECT_EQ(fitted(w, small_spec(), 0).batch, 1) << "one request always remains";
}

TEST(TuningWorkloads, LeaveOutTheContextThatAWindowHides) {
  AttentionSpec spec = small_spec();
  spec.mask = "sliding_window";
  spec.mask_parameters = {{"window", 1500}};
  const TuningWorkload w = {.batch = 1, .query_tokens = 1, .context = 16384};
  EXPECT_EQ(fitted(w, spec, 1 << 20).context, 2048);
  spec.mask_parameters = {{"window", std::numeric_limits<int>::max()}};
  EXPECT_EQ(fitted(w, spec, 1 << 20).context, 16384);
}

// Returns the value of a floating-point number with a sign, an exponent and a mantissa.
double number(const std::byte* bytes, int size, int mantissa_bits) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, bytes, static_cast<std::size_t>(size));
  const int exponent_bits = 8 * size - 1 - mantissa_bits;
  const int largest = (1 << exponent_bits) - 1;
  const int exponent = static_cast<int>(bits >> mantissa_bits) & largest;
  const double fraction = std::ldexp(bits & ((1U << mantissa_bits) - 1), -mantissa_bits);
  const double magnitude =
      std::ldexp(exponent == 0 ? fraction : 1 + fraction, std::max(exponent, 1) - largest / 2);
  return bits >> (8 * size - 1) == 0 ? magnitude : -magnitude;
}

TEST(NormalValues, AreNormallyDistributedInAllTypes) {
  constexpr std::size_t kCount = 20000;
  struct Case {
    Dtype dtype;
    int bytes;
    int mantissa_bits;
    std::size_t different;
  };
  for (const Case& c : {Case{Dtype::kBf16, 2, 7, 500}, Case{Dtype::kFp16, 2, 10, 500},
                        Case{Dtype::kFp8E4m3, 1, 3, 100}, Case{Dtype::kFp8E5m2, 1, 2, 80}}) {
    SCOPED_TRACE(to_string(c.dtype));
    const std::vector<std::byte> values = normal_values(c.dtype, kCount, 1);
    ASSERT_EQ(values.size(), kCount * static_cast<std::size_t>(c.bytes));
    double sum = 0;
    double squares = 0;
    double largest = 0;
    std::set<double> different;
    for (std::size_t i = 0; i < values.size(); i += static_cast<std::size_t>(c.bytes)) {
      const double x = number(values.data() + i, c.bytes, c.mantissa_bits);
      sum += x;
      squares += x * x;
      largest = std::max(largest, std::abs(x));
      different.insert(x);
    }
    EXPECT_NEAR(sum / kCount, 0.0, 0.03);
    EXPECT_NEAR(squares / kCount, 1.0, 0.05);
    EXPECT_LT(largest, 8) << "neither NaN nor infinite";
    EXPECT_GT(different.size(), c.different);
    EXPECT_NE(normal_values(c.dtype, kCount, 2), values);
  }
}

TEST(TuningPool, ReturnsOtherPagesUntilTwiceL2HasBeenRead) {
  const auto device = std::make_shared<FakeDevice>();
  const AttentionSpec spec = small_spec();
  constexpr int kPageBytes = 16 * 2 * 64 * 2;
  device->l2 = 10 * kPageBytes;
  const TuningWorkload workload = {.batch = 1, .query_tokens = 1, .context = 48};  // 4 pages
  TuningPool pool(device, spec, {workload});
  EXPECT_EQ(pool.pages(), 4 + 10) << "pages of keys, and as many of values";
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

TEST(TuningPool, Has8BitElementsIfTheSpecSaysSo) {
  const auto device = std::make_shared<FakeDevice>();
  AttentionSpec spec = small_spec();
  EXPECT_EQ(token_bytes(spec), 2 * 2 * 64 * 2);
  spec.kv_dtype = Dtype::kFp8E5m2;
  EXPECT_EQ(token_bytes(spec), 2 * 2 * 64);
  constexpr int kPageBytes = 16 * 2 * 64;
  device->l2 = 10 * kPageBytes;
  TuningPool pool(device, spec, {{.batch = 1, .query_tokens = 1, .context = 48}});
  EXPECT_EQ(pool.pages(), 4 + 10);
  const PoolTensors first = pool.next(4);
  EXPECT_EQ(first.keys.type, ElementType::kFp8E5m2);
  EXPECT_EQ(first.values.type, ElementType::kFp8E5m2);
  EXPECT_EQ(pool.next(4).keys.data, static_cast<char*>(first.keys.data) + 4 * kPageBytes);
}

TEST(TuningPool, HasABiasOfKeysIfTheSpecSaysSo) {
  const auto device = std::make_shared<FakeDevice>();
  AttentionSpec spec = small_spec();
  device->l2 = 10 * 16 * 2 * 64 * 2;  // ten pages
  const TuningWorkload workload = {.batch = 1, .query_tokens = 1, .context = 48};
  EXPECT_FALSE(TuningPool(device, spec, {workload}).next(4).key_bias);
  spec.key_bias = true;
  TuningPool pool(device, spec, {workload});
  const TensorView first = pool.next(4).key_bias.value();
  EXPECT_EQ(first.type, ElementType::kFp32);
  EXPECT_EQ(first.rank, 3);
  EXPECT_EQ(first.shape[0], 4);
  EXPECT_EQ(first.shape[1], 2);
  EXPECT_EQ(first.shape[2], 16);
  constexpr int kPageBytes = 2 * 16 * 4;
  EXPECT_EQ(pool.next(4).key_bias->data, static_cast<char*>(first.data) + 4 * kPageBytes);
  EXPECT_NE(*static_cast<const float*>(first.data), 0.0f);
}

TEST(TuningPool, HasLsesOfEntriesIfTheSpecHasStates) {
  const auto device = std::make_shared<FakeDevice>();
  AttentionSpec spec = small_spec();
  spec.states = true;
  const PoolTensors pool =
      TuningPool(device, spec, {{.batch = 1, .query_tokens = 1, .context = 48}}).next(4);
  EXPECT_FALSE(pool.key_bias);
  EXPECT_EQ(pool.entry_lse.value().type, ElementType::kFp32);
  EXPECT_EQ(pool.entry_lse->shape[0], 4);
  EXPECT_EQ(pool.entry_lse->shape[1], 2);
  EXPECT_EQ(pool.entry_lse->shape[2], 16);
}

TuningResult result_of(std::vector<float> out, std::vector<float> lse) {
  return {std::move(out), std::move(lse)};
}

AttentionSpec spec_of(Dtype dtype) {
  AttentionSpec spec;
  spec.head_dim = 128;
  spec.num_q_heads = spec.num_kv_heads = 1;
  spec.dtype = dtype;
  return spec;
}

TEST(TuningDifference, RoundingIsNoDifference) {
  const TuningResult baseline = result_of({1.0F, -2.0F, 0.5F, 0.25F}, {3.0F, 4.0F});
  const TuningResult rounded = result_of({1.0078F, -2.0F, 0.5F, 0.25F}, {3.004F, 4.0F});
  EXPECT_EQ(difference(baseline, baseline, spec_of(Dtype::kBf16)), "");
  EXPECT_EQ(difference(baseline, rounded, spec_of(Dtype::kBf16)), "");
  AttentionSpec scaled = spec_of(Dtype::kBf16);
  scaled.rope = {.variant = "neox", .parameters = {{"theta", 1e4}, {"attention_factor", 2.0}}};
  const TuningResult far = result_of({1.0F, -2.0F, 0.5F, 0.25F}, {3.015F, 4.0F});
  EXPECT_EQ(difference(baseline, far, scaled), "");
  scaled.query_form = RopeForm::kRotated;
  EXPECT_TRUE(says(difference(baseline, far, scaled), {"row 0 of 2"}));
}

TEST(TuningDifference, NamesTheRowThatDiffers) {
  const TuningResult baseline = result_of({1.0F, -2.0F, 0.5F, 0.25F}, {3.0F, 4.0F});
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const auto differs = [&](std::vector<float> out, std::vector<float> lse, Dtype dtype) {
    return difference(baseline, result_of(std::move(out), std::move(lse)), spec_of(dtype));
  };
  EXPECT_TRUE(says(differs({1.0F, -2.0F, 0.5F, 0.3F}, {3.0F, 4.0F}, Dtype::kBf16), {"row 1 of 2"}));
  EXPECT_TRUE(
      says(differs({1.0078F, -2.0F, 0.5F, 0.25F}, {3.0F, 4.0F}, Dtype::kFp16), {"row 0 of 2"}));
  EXPECT_TRUE(says(differs({1.0F, -2.0F, 0.5F, 0.25F}, {3.0F, 4.01F}, Dtype::kBf16),
                   {"row 1 of 2", "its lse by 0.01"}));
  EXPECT_TRUE(says(differs({1.0F, -2.0F, 0.5F, 0.25F}, {3.004F, 4.0F}, Dtype::kFp16),
                   {"row 0 of 2", "its lse by 0.004"}));
  EXPECT_TRUE(says(differs({1.0F, -2.0F, 0.5F, nan}, {3.0F, 4.0F}, Dtype::kBf16), {"row 1 of 2"}));
}

}  // namespace
}  // namespace lazyrope
