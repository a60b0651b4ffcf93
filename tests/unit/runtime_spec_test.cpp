#include <gtest/gtest.h>

#include <limits>

#include "codegen/error.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

testing::AssertionResult refuses(const AttentionSpec& spec, const std::vector<std::string>& parts) {
  return throws<SpecError>([&] { validate(spec); }, parts);
}

TEST(AttentionSpec, QueryHeadsAreAMultipleOfKvHeads) {
  AttentionSpec spec = small_spec();
  for (const int heads : {0, -4, 3, 1}) {
    spec.num_q_heads = heads;
    EXPECT_TRUE(refuses(spec, {"num_q_heads = " + std::to_string(heads) + " with num_kv_heads = 2",
                               "must be a multiple"}));
  }
  for (const int heads : {0, -2}) {
    spec.num_kv_heads = heads;
    EXPECT_TRUE(refuses(spec, {"num_kv_heads = " + std::to_string(heads), "at least 1"}));
  }
}

TEST(AttentionSpec, TheScaleIsAPositiveNumber) {
  AttentionSpec spec = small_spec();
  for (const double scale : {0.0, -0.125, std::numeric_limits<double>::infinity(),
                             std::numeric_limits<double>::quiet_NaN()}) {
    spec.scale = scale;
    EXPECT_TRUE(refuses(spec, {"scale = ", "must be a positive number"}));
  }
  spec.scale = 0.25;
  EXPECT_NO_THROW(validate(spec));
  EXPECT_EQ(spec.softmax_scale(), 0.25);
}

TEST(AttentionSpec, TheScaleIsOneOverTheRootOfHeadDimByDefault) {
  EXPECT_EQ(small_spec().softmax_scale(), 0.125);
}

TEST(AttentionSpec, IllegalKernelSpecsAreRefused) {
  AttentionSpec spec = small_spec();
  spec.num_q_heads = 2 * 129;
  EXPECT_TRUE(refuses(spec, {"group_size = 129", "1 to 128"}));
}

TEST(AttentionSpec, KernelSpecsDoNotDependOnHeadCountsAndScale) {
  AttentionSpec wide = small_spec();
  wide.num_q_heads = 16;
  wide.num_kv_heads = 8;
  wide.scale = 0.25;
  EXPECT_EQ(wide.kernel_spec(), small_spec().kernel_spec());
  EXPECT_EQ(wide.kernel_spec().group_size, 2);
}

struct Ranks {
  int ranks;
  int q_heads;
  int kv_heads;
};

TEST(TensorParallel, GivesEachRankItsShareOfTheHeads) {
  AttentionSpec all = small_spec();
  all.num_q_heads = 32;
  all.num_kv_heads = 8;
  for (const auto& [ranks, q_heads, kv_heads] :
       {Ranks{1, 32, 8}, Ranks{4, 8, 2}, Ranks{8, 4, 1}, Ranks{16, 2, 1}, Ranks{32, 1, 1}}) {
    AttentionSpec one = all;
    one.num_q_heads = q_heads;
    one.num_kv_heads = kv_heads;
    EXPECT_EQ(tensor_parallel(all, ranks), one) << ranks;
  }
}

TEST(TensorParallel, RefusesHeadsThatCannotBeDivided) {
  AttentionSpec all = small_spec();
  all.num_q_heads = 24;
  all.num_kv_heads = 6;
  for (const int ranks : {4, 5, 48})
    EXPECT_TRUE(throws<SpecError>(
        [&] { tensor_parallel(all, ranks); },
        {"tensor_parallel = " + std::to_string(ranks), "24 query and 6 KV heads"}));
  EXPECT_TRUE(throws<SpecError>([&] { tensor_parallel(all, 0); }, {"at least 1"}));
}

}  // namespace
}  // namespace lazyrope
