#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <fstream>
#include <string>
#include <string_view>

#include "codegen/error.h"
#include "runtime/spec/config_json.h"
#include "runtime/spec/model_config.h"
#include "tests/support/temporary_directory.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

// Returns the text of a Llama config with one more key.
std::string llama_with(const std::string& key, const std::string& value) {
  return R"({"model_type": "llama", "hidden_size": 512, "num_attention_heads": 8, ")" + key +
         "\": " + value + "}";
}

AttentionSpec spec_of(const std::string& text) { return attention_spec_from_hf(text, {}); }

std::string repeated(const std::string& text, int times) {
  std::string result;
  for (int i = 0; i < times; ++i) result += text;
  return result;
}

// Without a limit, the destructor of a value so deep overflows the stack.
TEST(ConfigJson, DeepNestingIsRefusedWhereverItIs) {
  for (const int depth : {65, 80'000, 1'000'000}) {
    const std::string lists = repeated("[", depth) + repeated("]", depth);
    const std::string objects = repeated("{\"a\":", depth) + "0" + repeated("}", depth);
    for (const std::string& text : {lists, objects, llama_with("stray", lists),
                                    llama_with("rope_scaling", objects), repeated("[", depth)})
      EXPECT_TRUE(throws<SpecError>([&] { spec_of(text); }, {"nest more than 64 deep at byte"}));
  }
}

TEST(ConfigJson, NestingUpToTheLimitIsAccepted) {
  const std::string lists = repeated("[", kMaxConfigDepth - 1) + repeated("]", kMaxConfigDepth - 1);
  EXPECT_NO_THROW(spec_of(llama_with("stray", lists)));
}

TEST(ConfigJson, LargeTextIsRefused) {
  const std::string large = llama_with("stray", '"' + std::string(kMaxConfigBytes, 'a') + '"');
  EXPECT_TRUE(throws<SpecError>([&] { spec_of(large); }, {"more than 8388608 bytes"}));
  EXPECT_NO_THROW(spec_of(llama_with("stray", '"' + std::string(std::size_t{2} << 20, 'a') + '"')));
}

TEST(ConfigJson, NumbersThatAreNoDoublesMatterOnlyInKeysThatAreRead) {
  for (const std::string& number :
       {std::string("NaN"), std::string("Infinity"), std::string("-Infinity"), std::string("1e999"),
        std::string("-1e999"), std::string(400, '9')}) {
    EXPECT_EQ(spec_of(llama_with("stray", "[" + number + ", {\"a\": " + number + "}]")),
              spec_of(llama_with("stray", "0")))
        << number;
    EXPECT_TRUE(throws<SpecError>([&] { spec_of(llama_with("rope_theta", number)); },
                                  {"rope_theta = \"", "has the wrong type"}))
        << number;
  }
}

TEST(ConfigJson, StringsAreKeptAsTheyAre) {
  const std::string text = R"({"a": "NaN, [[[ \" Infinity ]", "b\\": "\\", "c": [-1.5e3, true]})";
  EXPECT_EQ(parse_config(text), Json::parse(text));
}

TEST(ConfigJson, OtherLiteralsAreNoJson) {
  for (const char* word : {"nan", "inf", "Inf", "-NaN", "+1", "01", "1.", ".5", "0x10", "None"})
    EXPECT_TRUE(throws<SpecError>([&] { spec_of(llama_with("stray", word)); },
                                  {"config.json: not a JSON object: parse error at line 1"}))
        << word;
}

TEST(ConfigJson, ErrorsQuoteAFewPlainCharacters) {
  const std::string large(std::size_t{1} << 20, 'a');
  for (const std::string& text :
       {llama_with("head_dim", '"' + large + '"'),
        llama_with("rope_scaling", "{\"" + large + "\": 1}"),
        llama_with("num_attention_heads", "[\"\x1b[31m\xc3\xa9\"]"), llama_with("a", large),
        std::string(R"({"model_type": ")") + large + "\"}", std::string("{\"\xff\x1b\": 1}")}) {
    try {
      spec_of(text);
      ADD_FAILURE() << text.substr(0, 100) << " is accepted";
    } catch (const SpecError& error) {
      const std::string_view what = error.what();
      EXPECT_LT(what.size(), 600u) << what.substr(0, 600);
      EXPECT_TRUE(std::ranges::all_of(what, [](char c) { return c >= ' ' && c <= '~'; })) << what;
    }
  }
}

TEST(ConfigJson, FilesThatAreNoConfigAreRefused) {
  const TemporaryDirectory directory;
  ASSERT_EQ(::mkfifo((directory / "fifo").c_str(), 0600), 0);
  std::ofstream(directory / "large") << std::string(kMaxConfigBytes + 1, ' ');
  const auto refuses = [&](const std::string& name, const std::string& part) {
    return throws<SpecError>([&] { read_config_file(directory / name); }, {part});
  };
  EXPECT_TRUE(refuses("absent", "absent: No such file"));
  EXPECT_TRUE(refuses("fifo", "fifo: it is not a regular file"));
  EXPECT_TRUE(refuses("", "it is not a regular file"));
  EXPECT_TRUE(refuses("large", "more than 8388608 bytes"));
  std::ofstream(directory / "small") << "{}";
  EXPECT_EQ(read_config_file(directory / "small"), "{}");
}

}  // namespace
}  // namespace lazyrope
