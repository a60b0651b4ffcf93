#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "codegen/error.h"
#include "codegen/kernel_spec.h"
#include "tests/support/specs.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

KernelSpec legal_spec() { return small_spec().kernel_spec(); }

struct IllegalSpec {
  const char* name;
  std::function<void(KernelSpec&)> change;
  std::vector<std::string> parts;
};

void PrintTo(const IllegalSpec& row, std::ostream* out) { *out << row.name; }

class IllegalSpecs : public testing::TestWithParam<IllegalSpec> {};

TEST_P(IllegalSpecs, NameTheFieldTheValueAndWhatIsAllowed) {
  KernelSpec spec = legal_spec();
  GetParam().change(spec);
  EXPECT_TRUE(throws<SpecError>([&] { validate(spec); }, GetParam().parts));
}

INSTANTIATE_TEST_SUITE_P(
    KernelSpec, IllegalSpecs,
    testing::Values(
        IllegalSpec{"NoHeadDim",
                    [](auto& s) { s.head_dim = 0; },
                    {"head_dim = 0", "64, 72, 80, 96, 112, 128, 160, 192, 256"}},
        IllegalSpec{
            "OddHeadDim", [](auto& s) { s.head_dim = 88; }, {"head_dim = 88", "64, 72, 80"}},
        IllegalSpec{
            "NegativeHeadDim", [](auto& s) { s.head_dim = -64; }, {"head_dim = -64", "64, 72"}},
        IllegalSpec{"NoGroup", [](auto& s) { s.group_size = 0; }, {"group_size = 0", "1 to 128"}},
        IllegalSpec{
            "LargeGroup", [](auto& s) { s.group_size = 129; }, {"group_size = 129", "1 to 128"}},
        IllegalSpec{"Mask",
                    [](auto& s) { s.mask = "diagonal"; },
                    {"mask \"diagonal\" is unknown", "causal, full"}},
        IllegalSpec{"NoMask", [](auto& s) { s.mask = ""; }, {"mask \"\" is unknown"}},
        IllegalSpec{"Variant",
                    [](auto& s) { s.rope.variant = "alibi"; },
                    {"rope variant \"alibi\" is unknown",
                     "none, neox, gptj, linear, llama3, llama3_gptj, yarn, longrope"}},
        IllegalSpec{"RotaryDimOfNone",
                    [](auto& s) { s.rope = {"none", 64, {}}; },
                    {"rope \"none\" with rotary_dim = 64", "must be 0"}},
        IllegalSpec{"RotaryDimMissing",
                    [](auto& s) { s.rope.rotary_dim = 0; },
                    {"rotary_dim = 0 with head_dim = 64",
                     "multiples of 4 up to head_dim; from 128 on, multiples of 8"}},
        IllegalSpec{"RotaryDimOdd",
                    [](auto& s) { s.rope.rotary_dim = 22; },
                    {"rotary_dim = 22 with head_dim = 64", "multiples of 4"}},
        IllegalSpec{"RotaryDimOfHalfUnits",
                    [](auto& s) {
                      s.head_dim = 160;
                      s.rope.rotary_dim = 132;
                    },
                    {"rotary_dim = 132 with head_dim = 160", "from 128 on, multiples of 8"}},
        IllegalSpec{"NoWindow",
                    [](auto& s) { s.mask = "sliding_window"; },
                    {"mask \"sliding_window\" needs window", "positions that a query sees"}},
        IllegalSpec{"EmptyWindow",
                    [](auto& s) {
                      s.mask = "sliding_window";
                      s.mask_parameters["window"] = 0;
                    },
                    {"window = 0, allowed are 1 to"}},
        IllegalSpec{"WindowOfACausalMask",
                    [](auto& s) { s.mask_parameters["window"] = 9; },
                    {"mask \"causal\" has no parameter window (given 9)"}},
        IllegalSpec{"NegativeSoftcap",
                    [](auto& s) { s.softcap = -1.0; },
                    {"softcap = -1", "allowed are 0.001 to"}},
        IllegalSpec{
            "SmallSoftcap", [](auto& s) { s.softcap = 1e-30; }, {"softcap = 1e-30", "and 0 for"}},
        IllegalSpec{"SoftcapNan",
                    [](auto& s) { s.softcap = std::numeric_limits<double>::quiet_NaN(); },
                    {"softcap = nan"}},
        IllegalSpec{"EmptyChunk",
                    [](auto& s) {
                      s.mask = "chunked";
                      s.mask_parameters["chunk"] = 0;
                    },
                    {"chunk = 0, allowed are 1 to"}},
        IllegalSpec{"RawKeysOf8Bits",
                    [](auto& s) {
                      s.key_form = KeyForm::kRaw;
                      s.kv_dtype = Dtype::kFp8E4m3;
                    },
                    {"key_form = \"raw\" with kv_dtype = \"float8_e4m3fn\"", "a pool of 16 bits"}},
        IllegalSpec{"RawKeysThatArriveRotated",
                    [](auto& s) {
                      s.key_form = KeyForm::kRaw;
                      s.append_form = RopeForm::kRotated;
                    },
                    {"append_form = \"rotated\" with key_form = \"raw\""}},
        IllegalSpec{"NegativeTemperature",
                    [](auto& s) { s.temperature = {-0.1, 8192, 0}; },
                    {"beta = -0.1; allowed are 1e-06 to 1000"}},
        IllegalSpec{"EmptyIntervalOfTemperature",
                    [](auto& s) { s.temperature = {0.1, 0, 0}; },
                    {"interval = 0 positions; allowed are 1 to 1073741824"}},
        IllegalSpec{"LargeOffsetOfTemperature",
                    [](auto& s) { s.temperature = {0.1, 8, 9}; },
                    {"offset = 9 positions; allowed are 0 to interval, 8"}},
        IllegalSpec{"KeyBiasWithAWindow",
                    [](auto& s) {
                      s.key_bias = true;
                      s.mask = "sliding_window";
                      s.mask_parameters["window"] = 128;
                    },
                    {"key_bias with mask = \"sliding_window\"", "allowed are causal and full"}},
        IllegalSpec{"KeyBiasWithRawKeys",
                    [](auto& s) {
                      s.key_bias = true;
                      s.key_form = KeyForm::kRaw;
                    },
                    {"key_bias with key_form = \"raw\"", "store local keys"}},
        IllegalSpec{"StatesWithKeyBias",
                    [](auto& s) { s.states = s.key_bias = true; },
                    {"states with key_bias", "no bias of keys: choose one of them"}},
        IllegalSpec{"StatesWithPackedPrefill",
                    [](auto& s) { s.states = s.packed_prefill = true; },
                    {"states with packed_prefill", "packing copies tokens"}},
        IllegalSpec{"AttentionFactor",
                    [](auto& s) { s.rope.parameters["attention_factor"] = 0.0; },
                    {"attention_factor = 0, allowed are 0.001 to 1000"}},
        IllegalSpec{"RotaryDimLarge",
                    [](auto& s) { s.rope.rotary_dim = 80; },
                    {"rotary_dim = 80 with head_dim = 64", "up to head_dim"}},
        IllegalSpec{"RotaryDimNegative",
                    [](auto& s) { s.rope.rotary_dim = -16; },
                    {"rotary_dim = -16", "multiples of 4"}},
        IllegalSpec{"ParameterMissing",
                    [](auto& s) { s.rope.parameters.clear(); },
                    {"rope \"neox\" needs theta", "base of the frequencies"}},
        IllegalSpec{"ParameterUnknown",
                    [](auto& s) { s.rope.parameters["beta"] = 2.5; },
                    {"rope \"neox\" has no parameter beta", "given 2.5"}},
        IllegalSpec{"ParameterOfNone",
                    [](auto& s) { s.rope = {"none", 0, {{"theta", 1e4}}}; },
                    {"rope \"none\" has no parameter theta", "given 10000"}},
        IllegalSpec{"ParameterSmall",
                    [](auto& s) { s.rope.parameters["theta"] = 0.5; },
                    {"rope \"neox\": theta = 0.5, allowed are 1 to 1e+30"}},
        IllegalSpec{
            "ParameterInfinite",
            [](auto& s) { s.rope.parameters["theta"] = std::numeric_limits<double>::infinity(); },
            {"theta = inf, allowed are 1 to 1e+30"}},
        IllegalSpec{
            "ParameterNan",
            [](auto& s) { s.rope.parameters["theta"] = std::numeric_limits<double>::quiet_NaN(); },
            {"theta = nan, allowed are 1 to 1e+30"}}),
    [](const auto& row) { return row.param.name; });

TEST(KernelSpec, TheBoundsOfEachRangeAreLegal) {
  KernelSpec spec = legal_spec();
  for (const int group : {1, 3, 128}) {
    spec.group_size = group;
    EXPECT_NO_THROW(validate(spec)) << group;
  }
  for (const int rotary_dim : {4, 20, 24, 48, 64}) {
    spec.rope.rotary_dim = rotary_dim;
    EXPECT_NO_THROW(validate(spec)) << rotary_dim;
  }
  spec.rope.parameters["theta"] = 1.0;
  EXPECT_NO_THROW(validate(spec));
}

TEST(KernelSpec, NamesReadBackAsTheirValues) {
  for (const Dtype dtype : {Dtype::kBf16, Dtype::kFp16})
    EXPECT_EQ(dtype_from(to_string(dtype)), dtype);
  for (const RopeForm form : {RopeForm::kRaw, RopeForm::kRotated})
    EXPECT_EQ(rope_form_from(to_string(form)), form);
  for (const KeyForm form : {KeyForm::kLocal, KeyForm::kRaw})
    EXPECT_EQ(key_form_from(to_string(form)), form);
}

TEST(KernelSpec, AnUnknownNameIsAnErrorThatListsTheKnownNames) {
  EXPECT_TRUE(throws<SpecError>([] { dtype_from("float32"); },
                                {"dtype = \"float32\"; allowed are: bfloat16, float16"}));
  EXPECT_TRUE(throws<SpecError>([] { rope_form_from("Raw"); },
                                {"form = \"Raw\" (did you mean raw?); allowed are: raw, rotated"}));
  EXPECT_TRUE(
      throws<SpecError>([] { key_form_from(""); }, {"key_form = \"\"; allowed are: local, raw"}));
}

TEST(KernelSpec, IsDescribedInOneLine) {
  EXPECT_EQ(describe(legal_spec()),
            "head_dim 64, group 2, bfloat16, rope neox, causal, raw queries");
  KernelSpec spec = legal_spec();
  spec.mask = "sliding_window";
  spec.mask_parameters["window"] = 128;
  spec.softcap = 50.0;
  spec.sinks = true;
  EXPECT_EQ(describe(spec),
            "head_dim 64, group 2, bfloat16, rope neox, sliding_window (window 128), softcap 50, "
            "sinks, raw queries");
  spec = legal_spec();
  spec.temperature = {0.1, 8192, 1};
  EXPECT_EQ(describe(spec),
            "head_dim 64, group 2, bfloat16, rope neox, causal, temperature (beta 0.1, interval "
            "8192, offset 1), raw queries");
  spec = legal_spec();
  spec.key_bias = true;
  EXPECT_EQ(describe(spec),
            "head_dim 64, group 2, bfloat16, rope neox, causal, key bias, raw queries");
  spec = legal_spec();
  spec.states = true;
  EXPECT_EQ(describe(spec),
            "head_dim 64, group 2, bfloat16, rope neox, causal, states, raw queries");
}

}  // namespace
}  // namespace lazyrope
