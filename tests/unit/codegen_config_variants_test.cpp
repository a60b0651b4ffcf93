#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <utility>

#include "codegen/config_variants.h"
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

int differences(const TileConfig& a, const TileConfig& b) {
  return (a.warps_m != b.warps_m) + (a.warps_n != b.warps_n) + (a.warp_m != b.warp_m) +
         (a.warp_n != b.warp_n) + (a.mma_n != b.mma_n) + (a.stages != b.stages) +
         (a.ctas_per_sm != b.ctas_per_sm) + (a.heads != b.heads);
}

// Counts the choices in which two tiles differ. In decode kernels and on Hopper a block is one
// product, so warp_n and mma_n are one choice.
int choices(TileConfig KernelConfig::* tile, const KernelConfig& a, const KernelConfig& b) {
  const bool are_products = tile == &KernelConfig::decode || (a.*tile).family == Family::kSm90a;
  const bool together =
      are_products && (a.*tile).warp_n != (b.*tile).warp_n && (a.*tile).mma_n != (b.*tile).mma_n;
  return differences(a.*tile, b.*tile) - (together ? 1 : 0);
}

// Returns the config of which `attend` is a neighbour: the default of its family, with as many
// heads.
KernelConfig default_of(const TileConfig& attend, TileConfig KernelConfig::* tile,
                        const KernelSpec& spec, const Arch& arch) {
  for (KernelConfig config : configs(spec, arch)) {
    TileConfig& baseline = config.*tile;
    if (baseline.family != attend.family) continue;
    if (attend.heads != baseline.heads) {
      baseline.warp_m = baseline.rows_per_head();
      baseline.stages = baseline.stages * baseline.heads / attend.heads;
      baseline.heads = baseline.warps_m = attend.heads;
    }
    return config;
  }
  throw std::logic_error("a variant of a family without a config");
}

// Expects legal, distinct configs that vary `tile` alone, with the baseline first.
void expect_variants(const std::vector<KernelConfig>& configs, TileConfig KernelConfig::* tile,
                     const KernelConfig& baseline, const KernelSpec& spec, const Arch& arch) {
  ASSERT_FALSE(configs.empty());
  EXPECT_EQ(configs.front(), baseline);
  for (const KernelConfig& config : configs) {
    SCOPED_TRACE(describe(config));
    EXPECT_TRUE(is_legal(config, spec, arch));
    EXPECT_EQ(std::ranges::count(configs, config), 1);
    EXPECT_LE(choices(tile, config, default_of(config.*tile, tile, spec, arch)), 2);
    KernelConfig same = config;
    same.*tile = baseline.*tile;
    EXPECT_EQ(same, baseline);
  }
}

TEST(ConfigVariants, AreLegalNeighboursOfTheDefaultForEveryHeadDimAndArch) {
  for (const Arch& arch : archs())
    for (const int head_dim : supported_head_dims())
      for (const auto kv_dtype : kPools)
        for (const int group_size : {2, 16, 24}) {
          KernelSpec spec = spec_of(head_dim, kv_dtype);
          spec.group_size = group_size;
          SCOPED_TRACE(arch.name + ", " + describe(spec));
          const KernelConfig baseline = configs(spec, arch).front();
          expect_variants(decode_variants(baseline, spec, arch), &KernelConfig::decode, baseline,
                          spec, arch);
          expect_variants(prefill_variants(baseline, spec, arch), &KernelConfig::prefill, baseline,
                          spec, arch);
        }
}

TEST(ConfigVariants, AreFourToFortyForEachPhase) {
  const Arch& arch = find_arch("sm_90a");
  for (const int head_dim : supported_head_dims())
    for (const auto kv_dtype : kPools) {
      for (const int group_size : {4, 16}) {
        KernelSpec spec = spec_of(head_dim, kv_dtype);
        spec.group_size = group_size;
        const KernelConfig baseline = configs(spec, arch).front();
        for (const std::size_t count : {decode_variants(baseline, spec, arch).size(),
                                        prefill_variants(baseline, spec, arch).size()}) {
          EXPECT_GE(count, 4u) << describe(spec);
          EXPECT_LE(count, 40u) << describe(spec);
        }
      }
    }
}

// A product takes 32 keys of 8 bits if warps divide the keys.
TEST(ConfigVariants, DecodeVariantsForAnFp8PoolHaveProductsOf32Keys) {
  const KernelSpec spec = spec_of(128, Dtype::kFp8E4m3);
  const Arch& arch = find_arch("sm_90a");
  const KernelConfig baseline = configs(spec, arch).front();
  for (const KernelConfig& config : decode_variants(baseline, spec, arch))
    EXPECT_EQ(config.decode.mma_n % 32, 0) << describe(config);
}

TEST(ConfigVariants, DecodeVariantsServeTheSameRequests) {
  const Arch& arch = find_arch("sm_90a");
  for (const int head_dim : {64, 128}) {
    const KernelSpec spec = spec_of(head_dim);
    const KernelConfig baseline = configs(spec, arch).front();
    for (const KernelConfig& config : decode_variants(baseline, spec, arch))
      EXPECT_EQ(config.decode.rows_per_head(), baseline.decode.rows_per_head()) << describe(config);
  }
}

TEST(ConfigVariants, DecodeVariantsHaveTwoHeadsSideBySideWherePossible) {
  const Arch& arch = find_arch("sm_90a");
  const auto heads_and_groups = [&](int group_size, bool has_odd_kv_heads) {
    KernelSpec spec = spec_of(64);
    spec.group_size = group_size;
    spec.has_odd_kv_heads = has_odd_kv_heads;
    std::set<std::pair<int, int>> found;
    for (const KernelConfig& config : decode_variants(configs(spec, arch).front(), spec, arch))
      if (config.decode.family == Family::kSm90a)
        found.insert({config.decode.heads, config.decode.warps_m});
    return found;
  };
  using Found = std::set<std::pair<int, int>>;
  EXPECT_EQ(heads_and_groups(16, false), (Found{{1, 1}, {2, 2}}));
  EXPECT_EQ(heads_and_groups(4, false), (Found{{2, 1}})) << "8 rows are too few for a warpgroup";
  EXPECT_EQ(heads_and_groups(16, true), (Found{{1, 1}}));
}

TEST(ConfigVariants, SplitVariantsDifferInMinSplitBlocksAlone) {
  KernelConfig baseline = configs(spec_of(64), find_arch("sm_80")).front();
  baseline.min_split_blocks = 4;
  const std::vector<KernelConfig> configs = split_variants(baseline);
  std::vector<int> blocks;
  for (KernelConfig config : configs) {
    blocks.push_back(std::exchange(config.min_split_blocks, 4));
    EXPECT_EQ(config, baseline);
  }
  EXPECT_EQ(blocks, (std::vector{4, 1, 2, 8}));
}

}  // namespace
}  // namespace lazyrope
