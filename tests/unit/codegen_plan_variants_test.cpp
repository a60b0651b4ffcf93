#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "codegen/plan_variants.h"
#include "tests/support/specs.h"

namespace lazyrope {
namespace {

KernelSpec spec_of(int head_dim, std::optional<Dtype> kv_dtype = {}) {
  KernelSpec spec = small_spec().kernel_spec();
  spec.head_dim = head_dim;
  spec.kv_dtype = kv_dtype;
  return spec;
}

constexpr std::array<std::optional<Dtype>, 2> kPools = {std::nullopt, Dtype::kFp8E4m3};

int differences(const AttendPlan& a, const AttendPlan& b) {
  return (a.row_warps != b.row_warps) + (a.key_warps != b.key_warps) +
         (a.warp_rows != b.warp_rows) + (a.warp_keys != b.warp_keys) +
         (a.step_keys != b.step_keys) + (a.stages != b.stages) + (a.ctas_per_sm != b.ctas_per_sm) +
         (a.heads != b.heads);
}

// Decode's blocks are products, as are Hopper's: their keys differ together.
int choices(AttendPlan TilePlan::* part, const TilePlan& a, const TilePlan& b) {
  const bool are_products = part == &TilePlan::decode || (a.*part).family == Family::kSm90a;
  const bool together = are_products && (a.*part).warp_keys != (b.*part).warp_keys &&
                        (a.*part).step_keys != (b.*part).step_keys;
  return differences(a.*part, b.*part) - (together ? 1 : 0);
}

// What a plan is a neighbour of: the arch's default of its family, of as many heads.
TilePlan default_of(const AttendPlan& attend, AttendPlan TilePlan::* part, const KernelSpec& spec,
                    const Arch& arch) {
  for (TilePlan plan : candidates(spec, arch)) {
    AttendPlan& usual = plan.*part;
    if (usual.family != attend.family) continue;
    if (attend.heads != usual.heads) {
      usual.warp_rows = usual.head_rows();
      usual.stages = usual.stages * usual.heads / attend.heads;
      usual.heads = usual.row_warps = attend.heads;
    }
    return plan;
  }
  throw std::logic_error("a variant of a family that has no candidate");
}

// Each is legal and there once, the first is the plan itself, and only `part` is varied.
void expect_variants(const std::vector<TilePlan>& plans, AttendPlan TilePlan::* part,
                     const TilePlan& usual, const KernelSpec& spec, const Arch& arch) {
  ASSERT_FALSE(plans.empty());
  EXPECT_EQ(plans.front(), usual);
  for (const TilePlan& plan : plans) {
    SCOPED_TRACE(describe(plan));
    EXPECT_TRUE(is_legal(plan, spec, arch));
    EXPECT_EQ(std::ranges::count(plans, plan), 1);
    EXPECT_LE(choices(part, plan, default_of(plan.*part, part, spec, arch)), 2);
    TilePlan same = plan;
    same.*part = usual.*part;
    EXPECT_EQ(same, usual);
  }
}

TEST(PlanVariants, AreLegalNeighboursOfTheDefaultForEveryHeadDimAndArch) {
  for (const Arch& arch : archs())
    for (const int head_dim : planned_head_dims())
      for (const auto kv_dtype : kPools)
        for (const int group_size : {2, 16, 24}) {
          KernelSpec spec = spec_of(head_dim, kv_dtype);
          spec.group_size = group_size;
          SCOPED_TRACE(arch.name + ", " + describe(spec));
          const TilePlan usual = candidates(spec, arch).front();
          expect_variants(decode_variants(usual, spec, arch), &TilePlan::decode, usual, spec, arch);
          expect_variants(prefill_variants(usual, spec, arch), &TilePlan::prefill, usual, spec,
                          arch);
        }
}

TEST(PlanVariants, AreEnoughToChooseFromAndFewEnoughToCompile) {
  const Arch& arch = find_arch("sm_90a");
  for (const int head_dim : planned_head_dims())
    for (const auto kv_dtype : kPools) {
      for (const int group_size : {4, 16}) {
        KernelSpec spec = spec_of(head_dim, kv_dtype);
        spec.group_size = group_size;
        const TilePlan usual = candidates(spec, arch).front();
        for (const std::size_t count : {decode_variants(usual, spec, arch).size(),
                                        prefill_variants(usual, spec, arch).size()}) {
          EXPECT_GE(count, 4u) << describe(spec);
          EXPECT_LE(count, 40u) << describe(spec);
        }
      }
    }
}

// A product takes 32 keys of 8 bits where warps divide the keys.
TEST(PlanVariants, OfDecodeFrom8BitsTakeProductsOf32Keys) {
  const KernelSpec spec = spec_of(128, Dtype::kFp8E4m3);
  const Arch& arch = find_arch("sm_90a");
  const TilePlan usual = candidates(spec, arch).front();
  for (const TilePlan& plan : decode_variants(usual, spec, arch))
    EXPECT_EQ(plan.decode.step_keys % 32, 0) << describe(plan);
}

TEST(PlanVariants, OfDecodeServeTheSameRequests) {
  const Arch& arch = find_arch("sm_90a");
  for (const int head_dim : {64, 128}) {
    const KernelSpec spec = spec_of(head_dim);
    const TilePlan usual = candidates(spec, arch).front();
    for (const TilePlan& plan : decode_variants(usual, spec, arch))
      EXPECT_EQ(plan.decode.head_rows(), usual.decode.head_rows()) << describe(plan);
  }
}

TEST(PlanVariants, OfDecodeHaveHeadsSideBySideWhereTheyMay) {
  const Arch& arch = find_arch("sm_90a");
  const auto heads_and_groups = [&](int group_size, bool has_odd_kv_heads) {
    KernelSpec spec = spec_of(64);
    spec.group_size = group_size;
    spec.has_odd_kv_heads = has_odd_kv_heads;
    std::set<std::pair<int, int>> found;
    for (const TilePlan& plan : decode_variants(candidates(spec, arch).front(), spec, arch))
      if (plan.decode.family == Family::kSm90a)
        found.insert({plan.decode.heads, plan.decode.row_warps});
    return found;
  };
  using Found = std::set<std::pair<int, int>>;
  EXPECT_EQ(heads_and_groups(16, false), (Found{{1, 1}, {2, 2}}));
  EXPECT_EQ(heads_and_groups(4, false), (Found{{2, 1}})) << "8 rows are too few for a warpgroup";
  EXPECT_EQ(heads_and_groups(16, true), (Found{{1, 1}}));
}

TEST(PlanVariants, OfSplittingDifferInThatAlone) {
  TilePlan usual = candidates(spec_of(64), find_arch("sm_80")).front();
  usual.min_split_blocks = 4;
  const std::vector<TilePlan> plans = split_variants(usual);
  std::vector<int> blocks;
  for (TilePlan plan : plans) {
    blocks.push_back(std::exchange(plan.min_split_blocks, 4));
    EXPECT_EQ(plan, usual);
  }
  EXPECT_EQ(blocks, (std::vector{4, 1, 2, 8}));
}

}  // namespace
}  // namespace lazyrope
