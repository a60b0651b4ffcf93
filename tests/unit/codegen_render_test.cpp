#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <set>

#include "codegen/error.h"
#include "codegen/mask.h"
#include "codegen/render.h"
#include "codegen/rotated_keys.h"
#include "codegen/template_text.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

using Sources = std::map<KernelKind, std::string>;

KernelSpec base_spec() { return small_spec().kernel_spec(); }

RenderedKernel render_for(KernelKind kind, const KernelSpec& spec, const char* arch = "sm_90a") {
  return render(kind, spec, configs(spec, find_arch(arch)).front(), find_arch(arch));
}

Sources sources_of(const KernelSpec& spec) {
  Sources sources;
  for (const KernelKind kind : kernel_kinds(spec, find_arch("sm_90a")))
    sources[kind] = render_for(kind, spec).source;
  return sources;
}

KernelSpec raw_keys_spec() {
  KernelSpec spec = base_spec();
  spec.key_form = KeyForm::kRaw;
  return spec;
}
KernelSpec cascade_spec() {
  KernelSpec spec = base_spec();
  spec.cascade = true;
  return spec;
}
KernelSpec states_spec() {
  KernelSpec spec = base_spec();
  spec.states = true;
  return spec;
}

KernelSpec page_mass_spec() {
  KernelSpec spec = base_spec();
  spec.page_mass = true;
  return spec;
}
// Returns a spec that has a kernel of this kind on sm_90a.
KernelSpec spec_with(KernelKind kind) {
  if (kind == KernelKind::kPlanPageMass || kind == KernelKind::kSumPageMass)
    return page_mass_spec();
  const bool is_of_cascade = kind >= KernelKind::kShare && kind <= KernelKind::kCombineShared;
  return is_of_cascade ? cascade_spec() : raw_keys_spec();
}

TEST(Render, SourcesAreSelfContained) {
  for (const char* arch : {"sm_90a", "emu:sm_90a"})
    for (const KernelKind kind : kernel_kinds()) {
      const std::string source = render_for(kind, spec_with(kind), arch).source;
      for (const char* leftover : {"${", "#include", "#pragma once"})
        EXPECT_EQ(source.find(leftover), std::string::npos)
            << leftover << " in " << to_string(kind);
    }
}

TEST(Render, TheSameSpecGivesTheSameSource) {
  EXPECT_EQ(sources_of(base_spec()), sources_of(base_spec()));
}

TEST(Render, LaunchFactsFollowTheConfig) {
  const KernelConfig config = configs(base_spec(), find_arch("sm_90a")).front();
  std::set<std::string> entries;
  for (const KernelKind kind : kernel_kinds()) {
    const RenderedKernel kernel = render_for(kind, spec_with(kind));
    entries.insert(kernel.entry);
    EXPECT_EQ(kernel.kind, kind);
    EXPECT_EQ(kernel.entry, "lazyrope_" + std::string(to_string(kind)));
    EXPECT_NE(kernel.source.find("_KERNEL(" + kernel.entry + ", " + std::to_string(kernel.threads)),
              std::string::npos);
  }
  EXPECT_EQ(entries.size(), static_cast<std::size_t>(kKernelKinds));
  const RenderedKernel decode = render_for(KernelKind::kAttendDecode, base_spec());
  EXPECT_EQ(decode.threads, config.decode.threads(64));
  EXPECT_EQ(decode.shared_bytes, config.decode.shared_bytes(64));
  EXPECT_EQ(decode.ctas_per_sm, config.decode.ctas_per_sm);
  const RenderedKernel prefill = render_for(KernelKind::kAttendPrefill, base_spec());
  EXPECT_EQ(prefill.threads, config.prefill.threads(64));
  EXPECT_EQ(prefill.shared_bytes, config.prefill.shared_bytes(64));
}

TEST(Render, AnIllegalSpecIsRefused) {
  KernelSpec spec = base_spec();
  const KernelConfig config = configs(spec, find_arch("sm_80")).front();
  spec.group_size = 0;
  for (const KernelKind kind : kernel_kinds())
    EXPECT_TRUE(throws<SpecError>([&] { render(kind, spec, config, find_arch("sm_80")); },
                                  {"group_size = 0"}));
}

// Returns the kernels whose source differs from the base spec's.
std::set<KernelKind> changed_by(const std::function<void(KernelSpec&)>& change) {
  KernelSpec spec = base_spec();
  change(spec);
  const Sources before = sources_of(base_spec()), after = sources_of(spec);
  std::set<KernelKind> changed;
  for (const auto& [kind, source] : before)
    if (after.at(kind) != source) changed.insert(kind);
  return changed;
}

TEST(Render, AFieldChangesOnlyTheKernelsThatDependOnIt) {
  using enum KernelKind;
  const std::set<KernelKind> attend = {kAttendDecode, kAttendPrefill};
  const std::set<KernelKind> rope = {kAttendDecode, kAttendPrefill, kAppend, kReposition};
  const std::set<KernelKind> rows = {kPlan, kAttendDecode, kAttendPrefill};
  // The planner also changes: a work tile has two KV heads only if head_dim is small.
  std::set<KernelKind> rope_and_plan = rope;
  rope_and_plan.insert(kPlan);
  EXPECT_EQ(changed_by([](auto& s) { s.head_dim = 128; }), rope_and_plan);
  EXPECT_EQ(changed_by([](auto& s) { s.group_size = 3; }), rows);
  EXPECT_EQ(changed_by([](auto& s) { s.dtype = Dtype::kFp16; }), rope);
  EXPECT_EQ(changed_by([](auto& s) { s.kv_dtype = Dtype::kFp8E5m2; }), rope);
  EXPECT_EQ(changed_by([](auto& s) { s.rope = {}; }), rope);
  EXPECT_EQ(changed_by([](auto& s) { s.rope = llama3(64); }), rope);
  EXPECT_EQ(changed_by([](auto& s) { s.rope.rotary_dim = 32; }), rope);
  EXPECT_EQ(changed_by([](auto& s) { s.rope.parameters["theta"] = 10001.0; }), rope);
  EXPECT_EQ(changed_by([](auto& s) { s.mask = "full"; }), rows);
  const auto window = [](int tokens) {
    return [tokens](auto& s) {
      s.mask = "sliding_window";
      s.mask_parameters["window"] = tokens;
    };
  };
  EXPECT_EQ(changed_by(window(128)), rows);
  EXPECT_EQ(changed_by([](auto& s) { s.softcap = 30.0; }), attend);
  EXPECT_EQ(changed_by([](auto& s) { s.sinks = true; }), attend);
  EXPECT_EQ(changed_by([](auto& s) { s.temperature = {0.1, 8192, 1}; }), attend);
  EXPECT_EQ(changed_by([](auto& s) { s.rope.variant = "gptj"; }), rope);
  EXPECT_EQ(changed_by([](auto& s) { s.rope.parameters["attention_factor"] = 1.5; }),
            (std::set<KernelKind>{kAttendDecode, kAttendPrefill, kAppend}));
  EXPECT_EQ(changed_by([](auto& s) { s.query_form = RopeForm::kRotated; }), attend);
  EXPECT_EQ(changed_by([](auto& s) { s.append_form = RopeForm::kRotated; }),
            std::set<KernelKind>{kAppend});
  EXPECT_EQ(changed_by([](auto& s) { s.key_form = KeyForm::kRaw; }),
            (std::set<KernelKind>{kAttendDecode, kAttendPrefill, kAppend, kReposition}));
}

TEST(Render, AnAttentionHasAllKernelsButReposition) {
  const Arch& arch = find_arch("sm_90a");
  for (const KernelSpec& spec : {base_spec(), raw_keys_spec(), cascade_spec(), page_mass_spec()}) {
    std::vector<KernelKind> kinds = attention_kernels(spec, arch);
    EXPECT_EQ(std::ranges::count(kinds, KernelKind::kReposition), 0);
    kinds.push_back(KernelKind::kReposition);
    EXPECT_EQ(kinds, kernel_kinds(spec, arch));
  }
  EXPECT_EQ(attention_kernels(base_spec(), arch), attention_kernels());
  std::set<KernelKind> all;
  for (const KernelSpec& spec : {raw_keys_spec(), cascade_spec(), page_mass_spec()})
    for (const KernelKind kind : kernel_kinds(spec, arch)) all.insert(kind);
  EXPECT_EQ(std::vector(all.begin(), all.end()), kernel_kinds());
}

TEST(RotatedKeys, HaveKernelsWhereLocalKeysHavePrefillOfFamilySm90a) {
  const auto config_for = [](const std::function<void(KernelSpec&)>& change,
                             const char* arch = "sm_90a") {
    KernelSpec spec = raw_keys_spec();
    change(spec);
    return rotated_keys_config(spec, find_arch(arch));
  };
  const KernelConfig local = configs(base_spec(), find_arch("sm_90a")).front();
  EXPECT_EQ(config_for([](KernelSpec&) {}), local);
  EXPECT_TRUE(config_for([](KernelSpec&) {}, "emu:sm_90a"));
  EXPECT_FALSE(config_for([](KernelSpec&) {}, "sm_100"));
  EXPECT_FALSE(config_for([](KernelSpec& s) { s.key_form = KeyForm::kLocal; }));
  EXPECT_FALSE(config_for([](KernelSpec& s) { s.batch_invariant = true; }));
  EXPECT_TRUE(config_for([](KernelSpec& s) { s.head_dim = 72; }));
}

TEST(RotatedKeys, AreAttendedToByTheKernelOfLocalKeys) {
  const RenderedKernel rotated = render_for(KernelKind::kAttendRotated, raw_keys_spec());
  const RenderedKernel local = render_for(KernelKind::kAttendPrefill, base_spec());
  std::string source = rotated.source;
  source.replace(source.find(rotated.entry), rotated.entry.size(), local.entry);
  EXPECT_EQ(source, local.source);
  EXPECT_EQ(rotated.config, local.config);
  EXPECT_EQ(rotated.shared_bytes, local.shared_bytes);
}

TEST(RotatedKeys, OtherSpecsHaveNoKernelsForThem) {
  for (const KernelKind kind :
       {KernelKind::kPlanRotation, KernelKind::kRotateKeys, KernelKind::kAttendRotated}) {
    EXPECT_TRUE(throws<SpecError>(
        [&] { render_for(kind, base_spec()); },
        {"kernel " + std::string(to_string(kind)), "has none on sm_90a (key_form = \"local\")"}));
    EXPECT_TRUE(throws<SpecError>([&] { render_for(kind, raw_keys_spec(), "sm_100"); },
                                  {"has none on sm_100", "family sm90a"}));
  }
}

TEST(PageMass, OtherSpecsHaveNoKernelsForIt) {
  for (const KernelKind kind : {KernelKind::kPlanPageMass, KernelKind::kSumPageMass})
    EXPECT_TRUE(throws<SpecError>(
        [&] { render_for(kind, base_spec()); },
        {"kernel " + std::string(to_string(kind)), "specs with page_mass have it"}));
}

TEST(PageMass, OnlySpecsThatHaveItRenderItsText) {
  for (const KernelKind kind :
       {KernelKind::kPlan, KernelKind::kAttendDecode, KernelKind::kAttendPrefill}) {
    const std::string with = render_for(kind, page_mass_spec()).source;
    const std::string without = render_for(kind, base_spec()).source;
    EXPECT_NE(with.find("kMeasuresPageMass = true;"), std::string::npos) << to_string(kind);
    EXPECT_EQ(without.find("kMeasuresPageMass = true;"), std::string::npos) << to_string(kind);
    EXPECT_NE(without.find("kMeasuresPageMass = false;"), std::string::npos) << to_string(kind);
  }
}

TEST(KeyBias, OnlySpecsThatHaveItRenderItsText) {
  KernelSpec spec = base_spec();
  spec.key_bias = true;
  for (const char* arch : {"sm_80", "sm_90a"})
    for (const KernelKind kind : {KernelKind::kAttendDecode, KernelKind::kAttendPrefill}) {
      const std::string with = render_for(kind, spec, arch).source;
      const std::string without = render_for(kind, base_spec(), arch).source;
      EXPECT_NE(with.find("kHasKeyBias = true;"), std::string::npos) << to_string(kind);
      EXPECT_EQ(without.find("kHasKeyBias = true;"), std::string::npos) << to_string(kind);
      EXPECT_NE(without.find("kHasKeyBias = false;"), std::string::npos) << to_string(kind);
    }
  EXPECT_EQ(render_for(KernelKind::kPlan, spec).source,
            render_for(KernelKind::kPlan, base_spec()).source);
}

TEST(KeyBias, TakesSharedMemoryInDecodeAndForProducts) {
  KernelSpec spec = base_spec();
  spec.key_bias = true;
  for (const char* arch : {"sm_80", "sm_90a"}) {
    const KernelConfig config = configs(spec, find_arch(arch)).front();
    EXPECT_GT(config.decode.shared_bytes(spec), config.decode.shared_bytes(base_spec())) << arch;
    const bool has_products = config.prefill.family == Family::kSm90a;
    EXPECT_EQ(config.prefill.shared_bytes(spec) > config.prefill.shared_bytes(base_spec()),
              has_products)
        << arch;
  }
}

TEST(KeyBias, LeavesEveryHeadDimAConfigOnEveryArch) {
  for (const Arch& arch : archs())
    for (const int head_dim : supported_head_dims()) {
      KernelSpec spec = base_spec();
      spec.head_dim = head_dim;
      const std::size_t without = configs(spec, arch).size();
      spec.key_bias = true;
      EXPECT_EQ(configs(spec, arch).size(), without) << head_dim << " on " << arch.name;
    }
}

TEST(States, OnlySpecsThatHaveThemRenderTheirText) {
  for (const KernelKind kind :
       {KernelKind::kPlan, KernelKind::kAttendDecode, KernelKind::kAttendPrefill}) {
    const std::string with = render_for(kind, states_spec()).source;
    const std::string without = render_for(kind, base_spec()).source;
    EXPECT_NE(with.find("kMemories = kMaxMemories;"), std::string::npos) << to_string(kind);
    EXPECT_EQ(without.find("kMemories = kMaxMemories;"), std::string::npos) << to_string(kind);
    EXPECT_NE(without.find("kMemories = 0;"), std::string::npos) << to_string(kind);
  }
}

TEST(States, PrefillHasFamilySm80OnHopper) {
  const KernelConfig config = configs(states_spec(), find_arch("sm_90a")).front();
  EXPECT_EQ(config.decode.family, Family::kSm90a);
  EXPECT_EQ(config.prefill.family, Family::kSm80);
  KernelConfig with_sm90a = config;
  with_sm90a.prefill = configs(base_spec(), find_arch("sm_90a")).front().prefill;
  EXPECT_TRUE(throws<SpecError>(
      [&] { validate(with_sm90a, states_spec(), find_arch("sm_90a")); },
      {"prefill.family = sm90a with states; prefill of states has family sm80 alone"}));
}

TEST(Render, ThePlannerDependsOnSharedWorkTilesAndFixedSplitsAlone) {
  const KernelSpec spec = base_spec();
  const Arch& arch = find_arch("sm_80");
  KernelConfig config = configs(spec, arch).front();
  std::set<std::string> sources;
  for (const int heads : {1, 2, 4})
    for (const int blocks : {0, 1, 8}) {
      config.heads_per_work_tile = heads;
      config.fixed_split_blocks = blocks;
      sources.insert(render(KernelKind::kPlan, spec, config, arch).source);
    }
  EXPECT_EQ(sources.size(), 4u);
}

TEST(Render, EveryFieldOfTheTileConfigIsInTheSource) {
  const KernelSpec spec = base_spec();
  const Arch& arch = find_arch("sm_80");
  KernelConfig config = configs(spec, arch).front();
  config.prefill = {2, 1, 16, 32, 16, 2, 1};  // small enough that each field can be doubled
  std::set<std::string> sources = {render(KernelKind::kAttendPrefill, spec, config, arch).source};
  for (int TileConfig::* field :
       {&TileConfig::warps_m, &TileConfig::warp_m, &TileConfig::warp_n, &TileConfig::mma_n,
        &TileConfig::stages, &TileConfig::ctas_per_sm}) {
    KernelConfig other = config;
    other.prefill.*field *= 2;
    sources.insert(render(KernelKind::kAttendPrefill, spec, other, arch).source);
  }
  KernelConfig other = config;
  other.prefill.warps_m = 1;
  other.prefill.warps_n = 2;
  other.prefill.mma_n = other.prefill.warp_n;
  sources.insert(render(KernelKind::kAttendPrefill, spec, other, arch).source);
  EXPECT_EQ(sources.size(), 8u);
}

// Angles are 64-bit fractions of a revolution: the first pair's frequency is 1 radian, which is 1 /
// (2 pi) revolutions.
TEST(Render, FrequenciesAreFractionsOfARevolution) {
  const std::string source = render_for(KernelKind::kAppend, base_spec()).source;
  EXPECT_NE(source.find("kRevolutionsPerToken[] = {2935890503282001"), std::string::npos)
      << source.substr(source.find("kRevolutionsPerToken[]"), 80);
}

// Returns the cosine and the sine that templates/ops/rotate.cuh takes for a position, before the
// instructions' own errors of 2^-20.9 (PTX ISA, "sin").
std::pair<float, float> rotation_at(std::uint64_t position, std::uint64_t revolutions_per_token) {
  constexpr float kRadians = 1.46291807926715968e-9f;  // 2 pi / 2^32
  const auto upper = static_cast<std::int32_t>((position * revolutions_per_token) >> 32);
  const float angle = static_cast<float>(upper) * kRadians;
  return {std::cos(angle), std::sin(angle)};
}

TEST(Render, LongRopeIsAccurateAtLongPositions) {
  KernelSpec spec = base_spec();
  spec.rope = longrope(spec.head_dim);
  const RopeTable table = render_for(KernelKind::kAppend, spec).rope_table;
  ASSERT_EQ(std::ssize(table), spec.head_dim / 2);
  const long double error_of_instructions = std::exp2(-20.9L);
  for (const std::uint64_t position : {1U, 4095U, 4097U, 65536U, 131071U, 131072U})
    for (std::size_t i = 0; i < table.size(); ++i) {
      const long double exponent = -2.0L * static_cast<long double>(i) / spec.head_dim;
      const long double angle = static_cast<long double>(position) * std::pow(10000.0L, exponent) /
                                spec.rope.lists.at("factors")[i];
      const auto [cosine, sine] = rotation_at(position, table[i]);
      EXPECT_LT(std::abs(cosine - std::cos(angle)) + error_of_instructions, 1e-6L) << position;
      EXPECT_LT(std::abs(sine - std::sin(angle)) + error_of_instructions, 1e-6L) << position;
    }
}

TEST(Mask, AnUnknownNameIsAnErrorThatListsTheKnownNames) {
  EXPECT_TRUE(throws<SpecError>([] { mask_variant("window"); },
                                {"mask \"window\" is unknown; there are: causal, full"}));
}

TEST(Mask, ANameIsRegisteredOnce) {
  EXPECT_TRUE(throws<SpecError>([] { register_mask_variant(mask_variant("full")); },
                                {"\"full\" exists already", "choose another name"}));
}

TEST(Mask, AnAbsentParameterHasItsDefault) {
  MaskVariant mask = mask_variant("sliding_window");
  mask.name = "test_short_window";
  mask.parameters.front().default_value = 77;
  register_mask_variant(mask);
  KernelSpec spec = base_spec();
  spec.mask = mask.name;
  const std::string source = render_for(KernelKind::kPlan, spec).source;
  spec.mask_parameters["window"] = 77;
  EXPECT_EQ(render_for(KernelKind::kPlan, spec).source, source);
  spec.mask_parameters["window"] = 78;
  EXPECT_NE(render_for(KernelKind::kPlan, spec).source, source);
}

}  // namespace
}  // namespace lazyrope
