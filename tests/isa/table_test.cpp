// Every wrapper of templates/isa has a witness, and every recording a row.
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>

#include "tests/isa/recording.h"
#include "tests/isa/witnesses.h"
#include "tests/isa/wrappers.h"

namespace lazyrope {
namespace {

namespace fs = std::filesystem;

constexpr std::uintmax_t kMaxBytes = std::uintmax_t{2} << 20;  // of all recordings

std::string text_of(const std::string& name) {
  std::ifstream in(fmt::format("{}/isa/witness/{}.cuh", LAZYROPE_TEST_SOURCE_DIR, name));
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST(Wrappers, AreFoundInTheirTexts) {
  const auto found = wrappers_in(
      "#define LAZYROPE_DEVICE_CALL __device__ __noinline__\n"
      "// LAZYROPE_DEVICE int none();\n"
      "LAZYROPE_DEVICE void bar_sync() { asm(\"\"); }\n"
      "template <class T>\nLAZYROPE_DEVICE T ld(const T* p) {\n  return f(*p);\n}\n"
      "LAZYROPE_DEVICE SharedPtr operator+(SharedPtr p, int32 bytes) {}\n"
      "struct S {\n  LAZYROPE_DEVICE float& operator[](int i);\n};\n"
      "LAZYROPE_DEVICE void mma_m16n8k16_f32_bf16(float (&d)[4], const uint32 (&a)[4]) {}\n");
  EXPECT_EQ(found, (std::set<std::string>{"bar_sync", "ld", "operator+", "operator[]",
                                          "mma_m16n8k16_f32_bf16"}));
}

TEST(Wrappers, AllHaveAWitness) {
  std::set<std::string> missing = all_wrappers();
  EXPECT_GE(missing.size(), 40u);
  for (const Witness& witness : witnesses())
    for (const std::string& wrapper : witness.wrappers) missing.erase(wrapper);
  EXPECT_TRUE(missing.empty()) << "without a row in tests/isa/witnesses.cpp: "
                               << fmt::format("{}", fmt::join(missing, ", "));
}

TEST(Witnesses, NameWrappersThatTheirTextCalls) {
  const std::set<std::string> wrappers = all_wrappers();
  for (const Witness& witness : witnesses()) {
    EXPECT_FALSE(witness.wrappers.empty()) << witness.name;
    for (const std::string& wrapper : witness.wrappers) {
      EXPECT_TRUE(wrappers.contains(wrapper)) << witness.name << ": " << wrapper << " is unknown";
      EXPECT_TRUE(names_wrapper(text_of(witness.text), wrapper))
          << witness.text << ".cuh does not call " << wrapper;
    }
  }
}

TEST(Witnesses, HaveOneNameAndOneText) {
  std::set<std::string> texts;
  for (const WitnessText& text : witness_texts()) EXPECT_TRUE(texts.insert(text.name).second);
  std::set<std::string> names;
  for (const Witness& witness : witnesses()) {
    EXPECT_TRUE(names.insert(witness.name).second) << witness.name;
    EXPECT_TRUE(texts.contains(witness.text)) << witness.name << " names " << witness.text;
  }
}

TEST(Witnesses, TheirInputsAreTheSameEachTime) {
  for (const Witness& witness : witnesses())
    EXPECT_EQ(input_of(witness), input_of(witness)) << witness.name;
}

TEST(Recordings, AreOfRowsThatThereAre) {
  const fs::path folder = fs::path(LAZYROPE_TEST_SOURCE_DIR) / "isa" / "recordings";
  if (!fs::exists(folder)) GTEST_FAIL() << folder << " is missing: run record_isa on a GPU";
  std::uintmax_t bytes = 0;
  for (const fs::directory_entry& file : fs::directory_iterator(folder)) {
    bytes += file.file_size();
    EXPECT_TRUE(std::ranges::any_of(
        witnesses(),
        [&](const Witness& witness) { return recording_path(witness) == file.path(); }))
        << file.path() << " is no row's: remove it";
  }
  EXPECT_LE(bytes, kMaxBytes);
}

}  // namespace
}  // namespace lazyrope
