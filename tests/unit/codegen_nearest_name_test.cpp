#include <gtest/gtest.h>

#include "codegen/arch.h"
#include "codegen/error.h"
#include "codegen/kernel_spec.h"
#include "codegen/nearest_name.h"
#include "codegen/rope.h"
#include "runtime/spec/model_config.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

const std::vector<std::string> kNames = {"compile", "precompile", "profile", "sm_80", "sm_90a"};

TEST(NearestName, IsOneOrFewEditsAway) {
  EXPECT_EQ(nearest_name("complie", kNames), "compile");  // two neighbours are swapped
  EXPECT_EQ(nearest_name("compil", kNames), "compile");
  EXPECT_EQ(nearest_name("ccompile", kNames), "compile");
  EXPECT_EQ(nearest_name("compare", kNames), "compile");
  EXPECT_EQ(nearest_name("Profile", kNames), "profile");
}

TEST(NearestName, BeginsWithWhatIsGivenRatherThanDiffers) {
  EXPECT_EQ(nearest_name("sm_90", kNames), "sm_90a");
  EXPECT_EQ(nearest_name("sm_9", {"sn_9", "sm_9a"}), "sm_9a");
}

TEST(NearestName, OtherWordsHaveNone) {
  EXPECT_EQ(nearest_name("frobnicate", kNames), "");
  EXPECT_EQ(nearest_name("sm_75", kNames), "");
  EXPECT_EQ(nearest_name("sm_70", kNames), "");  // another digit is another arch
  EXPECT_EQ(nearest_name("float32", {"bfloat16", "float16"}), "");
  EXPECT_EQ(nearest_name("", kNames), "");
  EXPECT_EQ(nearest_name("compile", {}), "");
  EXPECT_EQ(nearest_name(std::string(1000, 'c'), {std::string(1000, 'd')}), "");
}

TEST(NearestName, StandsInErrorsOfUnknownNames) {
  EXPECT_EQ(did_you_mean("complie", kNames), " (did you mean compile?)");
  EXPECT_EQ(did_you_mean("frobnicate", kNames), "");
  EXPECT_TRUE(throws<SpecError>([] { find_arch("sm_90"); },
                                {"arch \"sm_90\" is unknown (did you mean sm_90a?); there are: "}));
  EXPECT_TRUE(throws<SpecError>(
      [] { rope_variant("noex"); },
      {"rope variant \"noex\" is unknown (did you mean neox?); there are: none, neox"}));
  EXPECT_TRUE(
      throws<SpecError>([] { dtype_from("bloat16"); },
                        {"dtype = \"bloat16\" (did you mean bfloat16?); allowed are: bfloat16"}));
  EXPECT_TRUE(throws<SpecError>(
      [] { validate(RopeSpec{"neox", 64, {{"theta", 1e4}, {"atention_factor", 2.0}}}, 64); },
      {"has no parameter atention_factor (given 2) (did you mean "
       "attention_factor?)"}));
  EXPECT_TRUE(
      throws<SpecError>([] { attention_specs_from_hf(R"({"model_type": "lama"})", std::nullopt); },
                        {"model_type = \"lama\" (did you mean llama?); "}));
}

}  // namespace
}  // namespace lazyrope
