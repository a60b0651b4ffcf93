#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "codegen/error.h"
#include "codegen/render.h"
#include "codegen/tile_plan.h"
#include "runtime/base/error.h"
#include "runtime/driver/nvrtc.h"
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

void expect_fits(const AttendPlan& plan, int head_dim, const Arch& arch) {
  const int bytes = plan.shared_bytes(head_dim);
  EXPECT_LE(bytes, arch.shared_per_block);
  EXPECT_LE(plan.ctas_per_sm * (bytes + kReservedSharedPerBlock), arch.shared_per_sm);
  // Of all archs an SM has the fewest threads, 1536, on 8.6, 8.9 and 12.0.
  EXPECT_LE(plan.ctas_per_sm * plan.threads(head_dim), 1536);
  EXPECT_EQ(std::min(plan.row_warps, plan.key_warps), 1) << "warps divide rows or keys";
  EXPECT_EQ(plan.warp_rows % 16, 0);
  EXPECT_EQ(plan.warp_keys % plan.step_keys, 0);
  EXPECT_GE(plan.stages, 2);
}

TEST(TilePlan, EveryCandidateFitsItsArch) {
  for (const Arch& arch : archs())
    for (const int head_dim : planned_head_dims())
      for (const TilePlan& plan : candidates(spec_of(head_dim), arch)) {
        SCOPED_TRACE(arch.name + ", head_dim " + std::to_string(head_dim) + ": " + describe(plan));
        expect_fits(plan.decode, head_dim, arch);
        expect_fits(plan.prefill, head_dim, arch);
      }
}

TEST(TilePlan, HeadDimsAreThoseOfTheTable) {
  EXPECT_EQ(planned_head_dims(), (std::vector<int>{64, 72, 80, 96, 112, 128, 160, 192, 256}));
}

TEST(TilePlan, EveryHeadDimHasOneOnEveryArch) {
  for (const Arch& arch : archs())
    for (const int head_dim : planned_head_dims())
      EXPECT_NO_THROW(candidates(spec_of(head_dim), arch)) << arch.name << ", " << head_dim;
}

TEST(TilePlan, HeadDimsWithoutOneGetTheNearest) {
  struct Unplanned {
    int head_dim;
    std::vector<std::string> parts;
  };
  for (const Unplanned& row : {
           Unplanned{100,
                     {"head_dim = 100 has no plan", "nearest: 96 and 112 (with 112, pad",
                      "rotary_dim and scale = 1 / sqrt(100)"}},
           {32, {"nearest: 64 (with 64, pad"}},
           {0, {"head_dim = 0 has no plan; nearest: 64; allowed"}},
           {257, {"nearest: 256; allowed are: 64, 72"}},
       })
    for (const auto& action : std::vector<std::function<void()>>{
             [&] { validate(spec_of(row.head_dim)); },
             [&] { candidates(spec_of(row.head_dim), find_arch("sm_90a")); }})
      EXPECT_TRUE(throws<SpecError>(action, row.parts));
}

TEST(TilePlan, ArchsWithoutOneGetTheNearestThatFits) {
  const Arch small = {"sm_00", 0, 0, 80 << 10, 100 << 10, Family::kSm80};
  const int bytes = candidates(spec_of(128), find_arch("sm_86")).front().decode.shared_bytes(128);
  EXPECT_TRUE(throws<SpecError>(
      [&] { candidates(spec_of(128), small); },
      {"head_dim = 128 has no plan on sm_00",
       "decode needs " + std::to_string(bytes) + " bytes of shared memory; a CTA has 81920",
       "nearest there: 64 and 192", "archs for 128: sm_80, sm_86"}));
  for (const int head_dim : {64, 192})
    EXPECT_NO_THROW(candidates(spec_of(head_dim), small)) << head_dim;
}

TEST(TilePlan, ArchsWithoutAnyAreNamed) {
  const Arch small = {"sm_00", 0, 0, 48 << 10, 64 << 10, Family::kSm80};
  EXPECT_TRUE(throws<SpecError>(
      [&] { candidates(spec_of(128), small); },
      {"for SMs with 102400 bytes of shared memory; sm_00 has 65536", "nearest there: none"}));
}

// A member with a value that the default plan must not have there, and what the error says.
struct Illegal {
  int AttendPlan::* member;
  int value;
  const char* text;
};

void expect_refused(AttendPlan TilePlan::* part, const Arch& arch,
                    const std::vector<Illegal>& rows) {
  for (const Illegal& illegal : rows) {
    TilePlan plan = candidates(spec_of(128), arch).front();
    (plan.*part).*illegal.member = illegal.value;
    EXPECT_TRUE(throws<SpecError>([&] { validate(plan, spec_of(128), arch); }, {illegal.text}));
  }
}

TEST(TilePlan, IllegalMembersAreNamed) {
  expect_refused(
      &TilePlan::prefill, find_arch("sm_100a"),
      {
          {&AttendPlan::row_warps, 0, "prefill.row_warps = 0; it must be at least 1"},
          {&AttendPlan::row_warps, 33, "prefill.row_warps = 33; allowed are 1, 2, 3"},
          {&AttendPlan::key_warps, 2, "prefill.key_warps = 2; with row_warps = 4 it must be 1"},
          {&AttendPlan::warp_rows, 24, "prefill.warp_rows = 24; allowed are 16, 32, 48, 64"},
          {&AttendPlan::warp_keys, 48, "prefill.warp_keys = 48; allowed are 16, 32, 64"},
          {&AttendPlan::step_keys, 0, "prefill.step_keys = 0; it must be a multiple of 16"},
          {&AttendPlan::step_keys, 48, "prefill.step_keys = 48; it must divide warp_keys = 64"},
          {&AttendPlan::stages, 1, "prefill.stages = 1; it must be at least 2"},
          {&AttendPlan::stages, 9, "prefill.stages = 9; with warp_keys = 64 it must be at most 5"},
          {&AttendPlan::ctas_per_sm, 4, "prefill.ctas_per_sm = 4; each CTA needs "},
          {&AttendPlan::warp_keys, 256, "prefill needs "},
      });
}

TEST(TilePlan, HopperHasKernelsOfItsOwn) {
  const Arch& hopper = find_arch("sm_90a");
  for (const int head_dim : planned_head_dims()) {
    const TilePlan plan = candidates(spec_of(head_dim), hopper).front();
    const auto family_of = [](bool is_hopper) {
      return is_hopper ? Family::kSm90a : Family::kSm80;
    };
    const bool has_decode = head_dim == 64 || head_dim == 128 || head_dim == 192 || head_dim == 256;
    EXPECT_EQ(plan.decode.family, family_of(has_decode)) << head_dim;
    EXPECT_EQ(plan.prefill.family, family_of(has_decode || head_dim == 96)) << head_dim;
    EXPECT_EQ(plan.decode.heads, head_dim == 64 ? 2 : 1) << "rows of 256 bytes";
  }
  KernelSpec odd = spec_of(64);
  odd.has_odd_kv_heads = true;
  EXPECT_EQ(candidates(odd, hopper).front().decode.heads, 1);
  EXPECT_EQ(candidates(odd, hopper).front().decode.family, Family::kSm90a);
  EXPECT_TRUE(
      throws<SpecError>([&] { validate(candidates(spec_of(64), hopper).front(), odd, hopper); },
                        {"decode.heads = 2", "allowed are 1"}));
  KernelSpec grouped = spec_of(64);
  for (grouped.group_size = 1; grouped.group_size <= 16; ++grouped.group_size) {
    const AttendPlan decode = candidates(grouped, hopper).front().decode;
    const bool is_few = grouped.group_size <= 8;
    EXPECT_EQ(decode.heads, 2);
    EXPECT_EQ(decode.head_rows(), is_few ? 8 : 16) << "a token's rows are one tile's";
    EXPECT_EQ(decode.row_warps, is_few ? 1 : 2) << "16 rows of a head have warps of their own";
    EXPECT_EQ(decode.ctas_per_sm, 2);
    EXPECT_EQ(decode.block_keys(), 64);
    EXPECT_FALSE(decode.divides_rows());
    EXPECT_EQ(decode.family, Family::kSm90a);
  }
  for (const int head_dim : {64, 96, 128, 192, 256}) {
    KernelSpec fp8 = spec_of(head_dim);
    fp8.kv_dtype = Dtype::kFp8E4m3;
    const TilePlan plan = candidates(fp8, hopper).front();
    EXPECT_EQ(plan.prefill.family, head_dim <= 128 ? Family::kSm90a : Family::kSm80);
    EXPECT_EQ(plan.decode.family, Family::kSm80);
    TilePlan wider = candidates(spec_of(head_dim), hopper).front();
    wider.decode = plan.decode;
    if (head_dim == 256) {
      EXPECT_TRUE(
          throws<SpecError>([&] { validate(wider, fp8, hopper); },
                            {"prefill.family = sm90a", "of 8 bits", "head_dim = 64, 96, 128"}));
    }
    wider.prefill.warp_keys = wider.prefill.step_keys = 96;
    EXPECT_TRUE(throws<SpecError>([&] { validate(wider, fp8, hopper); },
                                  {"prefill.warp_keys = 96", "64, 128"}));
  }
  KernelSpec fp8_decode = spec_of(128);
  fp8_decode.kv_dtype = Dtype::kFp8E4m3;
  EXPECT_TRUE(throws<SpecError>(
      [&] { validate(candidates(spec_of(128), hopper).front(), fp8_decode, hopper); },
      {"decode.family = sm90a", "pool of 8 bits", "prefill alone"}));
  KernelSpec wide = spec_of(128);
  wide.group_size = 17;
  EXPECT_EQ(candidates(wide, hopper).front().decode.family, Family::kSm80) << "17 rows a token";
  KernelSpec invariant = spec_of(128);
  invariant.batch_invariant = true;
  for (const TilePlan& plan : candidates(invariant, hopper))
    EXPECT_EQ(plan.fixed_split_blocks * plan.decode.block_keys(), 1024);
  for (const Arch& arch : archs())
    for (const TilePlan& plan : candidates(spec_of(128), arch))
      EXPECT_TRUE(has_family(arch, plan.prefill.family)) << arch.name;
}

TEST(TilePlan, IllegalMembersOfHopperAreNamed) {
  const Arch& arch = find_arch("sm_90a");
  expect_refused(
      &TilePlan::prefill, arch,
      {
          {&AttendPlan::row_warps, 4, "prefill.row_warps = 4; allowed are 1, 8"},
          {&AttendPlan::key_warps, 2, "prefill.key_warps = 2; allowed are 1"},
          {&AttendPlan::warp_rows, 32, "prefill.warp_rows = 32; allowed are 16"},
          {&AttendPlan::warp_keys, 256, "prefill.warp_keys = 256; allowed are 64, 96, 128"},
          {&AttendPlan::step_keys, 64, "prefill.step_keys = 64; allowed are 128"},
          {&AttendPlan::stages, 1, "prefill.stages = 1; it must be at least 2"},
          {&AttendPlan::stages, 3, "prefill needs "},
          {&AttendPlan::ctas_per_sm, 2, "prefill.ctas_per_sm = 2; allowed are 1"},
      });
  TilePlan plan = candidates(spec_of(128), arch).front();
  plan.decode = candidates(spec_of(128), find_arch("sm_100a")).front().decode;
  EXPECT_TRUE(throws<SpecError>([&] { validate(plan, spec_of(128), find_arch("sm_100a")); },
                                {"prefill.family = sm90a", "sm_100a has none but sm80"}));
  EXPECT_TRUE(throws<SpecError>([&] { validate(plan, spec_of(112), arch); },
                                {"family = sm90a", "head_dim = 64, 96, 128, 192, 256"}));
}

TEST(TilePlan, IllegalMembersOfHoppersDecodeAreNamed) {
  const Arch& arch = find_arch("sm_90a");
  expect_refused(&TilePlan::decode, arch,
                 {
                     {&AttendPlan::key_warps, 2, "decode.key_warps = 2; allowed are 4"},
                     {&AttendPlan::warp_rows, 48, "decode.warp_rows = 48; allowed are 16, 32"},
                     {&AttendPlan::warp_keys, 32, "decode.warp_keys = 32; allowed are 16"},
                     {&AttendPlan::step_keys, 32, "decode.step_keys = 32; allowed are 16"},
                     {&AttendPlan::stages, 4, "decode.ctas_per_sm = 2; each CTA needs "},
                     {&AttendPlan::stages, 7, "decode needs "},
                     {&AttendPlan::ctas_per_sm, 3, "decode.ctas_per_sm = 3; allowed are 1, 2"},
                     {&AttendPlan::heads, 2, "decode.heads = 2; allowed are 1"},
                 });
  const TilePlan plan = candidates(spec_of(128), arch).front();
  EXPECT_TRUE(throws<SpecError>([&] { validate(plan, spec_of(96), arch); },
                                {"decode.family = sm90a", "head_dim = 64, 128, 192, 256"}));
}

TEST(TilePlan, IllegalDivisionsAreNamed) {
  struct Row {
    int TilePlan::* member;
    int value;
    const char* text;
  };
  for (const Row& illegal : {Row{&TilePlan::min_split_blocks, 0, "min_split_blocks = 0"},
                             Row{&TilePlan::item_heads, 0, "item_heads = 0"},
                             Row{&TilePlan::fixed_split_blocks, -1, "fixed_split_blocks = -1"}}) {
    TilePlan plan = candidates(spec_of(64), find_arch("sm_80")).front();
    plan.*illegal.member = illegal.value;
    EXPECT_TRUE(throws<SpecError>([&] { validate(plan, spec_of(64), find_arch("sm_80")); },
                                  {illegal.text, "at least 1"}));
  }
}

TEST(TilePlan, DescribesItselfInALine) {
  const TilePlan plan = {{1, 4, 16, 16, 16, 3, 2}, {4, 1, 32, 64, 32, 2, 1}};
  EXPECT_EQ(describe(plan),
            "decode 1x4 warps, 16 rows x 64 keys, 3 stages, 2/SM; "
            "prefill 4x1 warps, 128 rows x 64 keys, 2 stages, 1/SM");
}

// As far as static_assert speaks.
void check(RenderedKernel kernel, const std::string& virtual_arch) {
  compile_to_ptx(shared_engine().nvrtc().library(),
                 {kernel.entry + ".cu",
                  std::move(kernel.source),
                  {"--gpu-architecture=" + virtual_arch, "--std=c++20",
                   "--device-as-default-execution-space", "--fdevice-syntax-only"}});
}

TEST(TilePlan, SharedBytesAreWhatTheDeviceTextCounts) {
  for (const std::string version : {"80", "90a"}) {
    const Arch& arch = find_arch("sm_" + version);
    for (const int head_dim : planned_head_dims())
      for (const TilePlan& plan : candidates(spec_of(head_dim), arch))
        for (const KernelKind kind : {KernelKind::kAttendDecode, KernelKind::kAttendPrefill})
          EXPECT_NO_THROW(check(render(kind, spec_of(head_dim), plan, arch), "compute_" + version))
              << arch.name << ": " << describe(plan);
  }
}

TEST(TilePlan, OtherSharedBytesDoNotCompile) {
  const Arch& arch = find_arch("sm_80");
  const TilePlan plan = candidates(spec_of(64), arch).front();
  RenderedKernel kernel = render(KernelKind::kAttendDecode, spec_of(64), plan, arch);
  const std::string figure = "kSharedBytes == " + std::to_string(kernel.shared_bytes);
  const std::size_t at = kernel.source.find(figure);
  ASSERT_NE(at, std::string::npos);
  kernel.source.insert(at + figure.size(), "0");
  EXPECT_TRUE(throws<CompileError>([&] { check(kernel, "compute_80"); },
                                   {"the plan's figure is what is launched with"}));
}

}  // namespace
}  // namespace lazyrope
