#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "codegen/error.h"
#include "codegen/kernel_config.h"
#include "codegen/render.h"
#include "runtime/base/error.h"
#include "runtime/driver/nvrtc.h"
#include "templates/abi/shared_layout.h"
#include "tests/support/engines.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

KernelSpec spec_of(int head_dim) {
  KernelSpec spec = small_spec().kernel_spec();
  spec.head_dim = head_dim;
  return spec;
}

KernelConfig hopper_config(const KernelSpec& spec) {
  return configs(spec, find_arch("sm_90a")).front();
}

void expect_fits(const TileConfig& config, int head_dim, const Arch& arch) {
  const int bytes = config.shared_bytes(head_dim);
  EXPECT_LE(bytes, arch.shared_per_block);
  EXPECT_LE(config.ctas_per_sm * (bytes + kReservedSharedPerBlock), arch.shared_per_sm);
  // An SM of 8.6, 8.9 or 12.0 has 1536 threads, the fewest of all archs.
  EXPECT_LE(config.ctas_per_sm * config.threads(head_dim), 1536);
  EXPECT_EQ(std::min(config.warps_m, config.warps_n), 1) << "warps divide rows or keys";
  EXPECT_EQ(config.warp_m % 16, 0);
  EXPECT_EQ(config.warp_n % config.mma_n, 0);
  EXPECT_GE(config.stages, 2);
}

TEST(KernelConfig, EveryCandidateFitsItsArch) {
  for (const Arch& arch : archs())
    for (const int head_dim : supported_head_dims())
      for (const KernelConfig& config : configs(spec_of(head_dim), arch)) {
        SCOPED_TRACE(arch.name + ", head_dim " + std::to_string(head_dim) + ": " +
                     describe(config));
        expect_fits(config.decode, head_dim, arch);
        expect_fits(config.prefill, head_dim, arch);
      }
}

TEST(KernelConfig, HeadDimsAreThoseOfTheTable) {
  EXPECT_EQ(supported_head_dims(), (std::vector<int>{64, 72, 80, 96, 112, 128, 160, 192, 256}));
}

TEST(KernelConfig, EveryHeadDimHasAConfigOnEveryArch) {
  for (const Arch& arch : archs())
    for (const int head_dim : supported_head_dims())
      EXPECT_NO_THROW(configs(spec_of(head_dim), arch)) << arch.name << ", " << head_dim;
}

TEST(KernelConfig, HeadDimsWithoutAConfigNameTheNearest) {
  struct Unplanned {
    int head_dim;
    std::vector<std::string> parts;
  };
  for (const Unplanned& row : {
           Unplanned{100,
                     {"head_dim = 100 has no kernel config", "nearest: 96 and 112 (with 112, pad",
                      "rotary_dim and scale = 1 / sqrt(100)"}},
           {32, {"nearest: 64 (with 64, pad"}},
           {0, {"head_dim = 0 has no kernel config; nearest: 64; allowed"}},
           {257, {"nearest: 256; allowed are: 64, 72"}},
       })
    for (const auto& action : std::vector<std::function<void()>>{
             [&] { validate(spec_of(row.head_dim)); },
             [&] { configs(spec_of(row.head_dim), find_arch("sm_90a")); }})
      EXPECT_TRUE(throws<SpecError>(action, row.parts));
}

TEST(KernelConfig, ArchsWithoutARowUseTheNearestThatFits) {
  const Arch small = {"sm_00", 0, 0, 80 << 10, 100 << 10, Family::kSm80};
  const int bytes = configs(spec_of(128), find_arch("sm_86")).front().decode.shared_bytes(128);
  EXPECT_TRUE(throws<SpecError>(
      [&] { configs(spec_of(128), small); },
      {"head_dim = 128 has no kernel config on sm_00",
       "decode needs " + std::to_string(bytes) + " bytes of shared memory; a CTA has 81920",
       "nearest there: 64 and 192", "archs for 128: sm_80, sm_86"}));
  for (const int head_dim : {64, 192})
    EXPECT_NO_THROW(configs(spec_of(head_dim), small)) << head_dim;
}

TEST(KernelConfig, ArchsWithoutAConfigAreNamed) {
  const Arch small = {"sm_00", 0, 0, 48 << 10, 64 << 10, Family::kSm80};
  EXPECT_TRUE(throws<SpecError>(
      [&] { configs(spec_of(128), small); },
      {"for SMs with 102400 bytes of shared memory; sm_00 has 65536", "nearest there: none"}));
}

// A member with a value that the default config must not have there, and what the error says.
struct Illegal {
  int TileConfig::* member;
  int value;
  const char* text;
};

void expect_refused(TileConfig KernelConfig::* tile, const Arch& arch,
                    const std::vector<Illegal>& rows) {
  for (const Illegal& illegal : rows) {
    KernelConfig config = configs(spec_of(128), arch).front();
    (config.*tile).*illegal.member = illegal.value;
    EXPECT_TRUE(throws<SpecError>([&] { validate(config, spec_of(128), arch); }, {illegal.text}));
  }
}

TEST(KernelConfig, TheLimitOfSharedMemoryIsThatOfItsArch) {
  EXPECT_EQ(kMaxSm90aBytes, find_arch("sm_90a").shared_per_block);
}

TEST(KernelConfig, IllegalMembersAreNamed) {
  expect_refused(
      &KernelConfig::prefill, find_arch("sm_100"),
      {
          {&TileConfig::warps_m, 0, "prefill.warps_m = 0; it must be at least 1"},
          {&TileConfig::warps_m, 33, "prefill.warps_m = 33; allowed are 1, 2, 3"},
          {&TileConfig::warps_n, 2, "prefill.warps_n = 2; with warps_m = 4 it must be 1"},
          {&TileConfig::warp_m, 24, "prefill.warp_m = 24; allowed are 16, 32, 48, 64"},
          {&TileConfig::warp_n, 48, "prefill.warp_n = 48; allowed are 16, 32, 64"},
          {&TileConfig::mma_n, 0, "prefill.mma_n = 0; it must be a multiple of 16"},
          {&TileConfig::mma_n, 48, "prefill.mma_n = 48; it must divide warp_n = 64"},
          {&TileConfig::stages, 1, "prefill.stages = 1; it must be at least 2"},
          {&TileConfig::stages, 9, "prefill.stages = 9; with warp_n = 64 it must be at most 5"},
          {&TileConfig::ctas_per_sm, 4, "prefill.ctas_per_sm = 4; each CTA needs "},
          {&TileConfig::warp_n, 256, "prefill needs "},
      });
}

TEST(KernelConfig, HopperHasItsOwnKernelsForSomeHeadDims) {
  const auto family_of = [](bool is_hopper) { return is_hopper ? Family::kSm90a : Family::kSm80; };
  for (const int head_dim : supported_head_dims()) {
    const KernelConfig config = hopper_config(spec_of(head_dim));
    const bool has_decode = head_dim == 64 || head_dim == 128 || head_dim == 192 || head_dim == 256;
    EXPECT_EQ(config.decode.family, family_of(has_decode)) << head_dim;
    EXPECT_EQ(config.prefill.family, Family::kSm90a) << head_dim;
    EXPECT_EQ(config.decode.heads, head_dim == 64 ? 2 : 1) << "rows of 256 bytes";
  }
}

TEST(KernelConfig, HopperDoesNotPairAnOddNumberOfKvHeads) {
  KernelSpec odd = spec_of(64);
  odd.has_odd_kv_heads = true;
  EXPECT_EQ(hopper_config(odd).decode.heads, 1);
  EXPECT_EQ(hopper_config(odd).decode.family, Family::kSm90a);
  EXPECT_TRUE(
      throws<SpecError>([&] { validate(hopper_config(spec_of(64)), odd, find_arch("sm_90a")); },
                        {"decode.heads = 2", "allowed are 1"}));
}

TEST(KernelConfig, ADecodeTileOfHopperHasAllRowsOfAToken) {
  KernelSpec spec = spec_of(64);
  for (spec.group_size = 1; spec.group_size <= 16; ++spec.group_size) {
    const TileConfig decode = hopper_config(spec).decode;
    const bool is_few = spec.group_size <= 8;
    EXPECT_EQ(decode.heads, 2);
    EXPECT_EQ(decode.rows_per_head(), is_few ? 8 : 16);
    EXPECT_EQ(decode.warps_m, is_few ? 1 : 2) << "16 rows of a head have warps of their own";
    EXPECT_EQ(decode.ctas_per_sm, 2);
    EXPECT_EQ(decode.block_n(), 64);
    EXPECT_FALSE(decode.divides_rows());
    EXPECT_EQ(decode.family, Family::kSm90a);
  }
  KernelSpec wide = spec_of(128);
  wide.group_size = 17;
  EXPECT_EQ(hopper_config(wide).decode.family, Family::kSm80) << "17 rows a token";
}

TEST(KernelConfig, HopperHasOnlyPrefillKernelsForPoolsOf8Bits) {
  const Arch& hopper = find_arch("sm_90a");
  for (const int head_dim : {64, 96, 128, 192, 256}) {
    KernelSpec fp8 = spec_of(head_dim);
    fp8.kv_dtype = Dtype::kFp8E4m3;
    const KernelConfig config = hopper_config(fp8);
    EXPECT_EQ(config.prefill.family, head_dim <= 128 ? Family::kSm90a : Family::kSm80);
    EXPECT_EQ(config.decode.family, Family::kSm80);
    KernelConfig illegal = hopper_config(spec_of(head_dim));
    if (illegal.decode.family == Family::kSm90a) {
      EXPECT_TRUE(throws<SpecError>([&] { validate(illegal, fp8, hopper); },
                                    {"decode.family = sm90a", "pool of 8 bits", "prefill alone"}));
    }
    illegal.decode = config.decode;
    if (head_dim == 256) {
      EXPECT_TRUE(
          throws<SpecError>([&] { validate(illegal, fp8, hopper); },
                            {"prefill.family = sm90a", "of 8 bits", "head_dim = 64, 96, 128"}));
    }
    illegal.prefill.warp_n = illegal.prefill.mma_n = 96;
    EXPECT_TRUE(throws<SpecError>([&] { validate(illegal, fp8, hopper); },
                                  {"prefill.warp_n = 96", "64, 128"}));
  }
}

TEST(KernelConfig, BatchInvariantSplitsHave1024TokensOnHopper) {
  KernelSpec invariant = spec_of(128);
  invariant.batch_invariant = true;
  for (const KernelConfig& config : configs(invariant, find_arch("sm_90a")))
    EXPECT_EQ(config.fixed_split_blocks * config.decode.block_n(), 1024);
}

TEST(KernelConfig, EveryPrefillFamilyIsOneOfItsArch) {
  for (const Arch& arch : archs())
    for (const KernelConfig& config : configs(spec_of(128), arch))
      EXPECT_TRUE(has_family(arch, config.prefill.family)) << arch.name;
}

TEST(KernelConfig, IllegalMembersOfHopperAreNamed) {
  const Arch& arch = find_arch("sm_90a");
  expect_refused(
      &KernelConfig::prefill, arch,
      {
          {&TileConfig::warps_m, 4, "prefill.warps_m = 4; allowed are 1, 8"},
          {&TileConfig::warps_n, 2, "prefill.warps_n = 2; allowed are 1"},
          {&TileConfig::warp_m, 32, "prefill.warp_m = 32; allowed are 16"},
          {&TileConfig::warp_n, 256, "prefill.warp_n = 256; allowed are 64, 96, 112, 128"},
          {&TileConfig::mma_n, 64, "prefill.mma_n = 64; allowed are 128"},
          {&TileConfig::stages, 1, "prefill.stages = 1; it must be at least 2"},
          {&TileConfig::stages, 3, "prefill needs "},
          {&TileConfig::ctas_per_sm, 2, "prefill.ctas_per_sm = 2; allowed are 1"},
      });
  KernelConfig config = configs(spec_of(128), arch).front();
  config.decode = configs(spec_of(128), find_arch("sm_100")).front().decode;
  EXPECT_TRUE(throws<SpecError>([&] { validate(config, spec_of(128), find_arch("sm_100")); },
                                {"prefill.family = sm90a", "sm_100 has only sm80"}));
}

TEST(KernelConfig, IllegalMembersOfHoppersDecodeAreNamed) {
  const Arch& arch = find_arch("sm_90a");
  expect_refused(&KernelConfig::decode, arch,
                 {
                     {&TileConfig::warps_n, 2, "decode.warps_n = 2; allowed are 4"},
                     {&TileConfig::warp_m, 48, "decode.warp_m = 48; allowed are 16, 32"},
                     {&TileConfig::warp_n, 32, "decode.warp_n = 32; allowed are 16"},
                     {&TileConfig::mma_n, 32, "decode.mma_n = 32; allowed are 16"},
                     {&TileConfig::stages, 4, "decode.ctas_per_sm = 2; each CTA needs "},
                     {&TileConfig::stages, 7, "decode needs "},
                     {&TileConfig::ctas_per_sm, 3, "decode.ctas_per_sm = 3; allowed are 1, 2"},
                     {&TileConfig::heads, 2, "decode.heads = 2; allowed are 1"},
                 });
  const KernelConfig config = configs(spec_of(128), arch).front();
  EXPECT_TRUE(throws<SpecError>([&] { validate(config, spec_of(96), arch); },
                                {"decode.family = sm90a", "head_dim = 64, 128, 192, 256"}));
}

TEST(KernelConfig, IllegalDivisionsAreNamed) {
  struct Row {
    int KernelConfig::* member;
    int value;
    const char* text;
  };
  for (const Row& illegal :
       {Row{&KernelConfig::min_split_blocks, 0, "min_split_blocks = 0"},
        Row{&KernelConfig::heads_per_work_tile, 0, "heads_per_work_tile = 0"},
        Row{&KernelConfig::fixed_split_blocks, -1, "fixed_split_blocks = -1"}}) {
    KernelConfig config = configs(spec_of(64), find_arch("sm_80")).front();
    config.*illegal.member = illegal.value;
    EXPECT_TRUE(throws<SpecError>([&] { validate(config, spec_of(64), find_arch("sm_80")); },
                                  {illegal.text, "at least 1"}));
  }
}

TEST(KernelConfig, DescribesItselfInALine) {
  const KernelConfig config = {{1, 4, 16, 16, 16, 3, 2}, {4, 1, 32, 64, 32, 2, 1}};
  EXPECT_EQ(describe(config),
            "decode 1x4 warps, 16 rows x 64 keys, 3 stages, 2/SM; "
            "prefill 4x1 warps, 128 rows x 64 keys, 2 stages, 1/SM");
}

}  // namespace
}  // namespace lazyrope
