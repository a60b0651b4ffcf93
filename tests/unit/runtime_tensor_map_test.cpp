// These tests check which tensor maps are legal, and what an emulated map holds.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <vector>

#include "codegen/error.h"
#include "runtime/driver/tensor_map.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

using Ints = std::vector<std::int64_t>;

alignas(16) std::array<std::byte, 64> memory;

// Describes 100 rows of 80 bf16 with room for 88, in boxes of 32 x 8.
TensorMapSpec rows() {
  return {.data = memory.data(),
          .dims = {80, 100},
          .strides = {176},
          .box = {32, 8},
          .swizzle = Swizzle::k64B};
}

// Returns success if the changed rows are refused with a text that has each of `parts`.
testing::AssertionResult refused(const auto& change, const std::vector<std::string>& parts) {
  TensorMapSpec spec = rows();
  change(spec);
  return throws<SpecError>([&] { validate(spec); }, parts);
}

TEST(TensorMap, TakesTheBoundsOfTheHardware) {
  validate(rows());
  validate({.data = memory.data(),
            .type = ElementType::kUint8,
            .dims = {std::int64_t{1} << 32, 1, 7, 1, 2},
            .strides = {16, 32, 16, (std::int64_t{1} << 40) - 16},
            .box = {256, 1, 256, 1, 1}});
  for (const ElementType type : {ElementType::kFp16, ElementType::kFp32, ElementType::kInt32,
                                 ElementType::kFp8E4m3, ElementType::kFp8E5m2}) {
    TensorMapSpec spec = rows();
    spec.type = type;
    spec.box[0] = 16;
    validate(spec);
  }
}

TEST(TensorMap, RefusesElementTypesWithoutATensorMap) {
  EXPECT_TRUE(refused([](auto& spec) { spec.type = ElementType::kInt64; },
                      {"elements of int64 were given", "bfloat16"}));
}

TEST(TensorMap, RefusesOtherRanks) {
  EXPECT_TRUE(refused(
      [](auto& spec) {
        spec.dims = {80};
        spec.strides = {};
        spec.box = {32};
      },
      {"1 dims were given; 2 to 5 are allowed"}));
  EXPECT_TRUE(refused([](auto& spec) { spec.dims = Ints(6, 16); }, {"6 dims were given"}));
  EXPECT_TRUE(refused([](auto& spec) { spec.strides = {2, 176}; },
                      {"2 strides were given for 2 dims; give 1, without the innermost's"}));
  EXPECT_TRUE(refused([](auto& spec) { spec.box = {32}; },
                      {"a box of 1 dims was given for a tensor of 2"}));
}

TEST(TensorMap, RefusesDataThatIsNotAligned) {
  EXPECT_TRUE(refused([](auto& spec) { spec.data = memory.data() + 8; }, {"a multiple of 16"}));
  EXPECT_TRUE(refused([](auto& spec) { spec.data = nullptr; }, {"the data is at 0x0"}));
}

TEST(TensorMap, RefusesExtentsThatItsFieldsCannotHold) {
  EXPECT_TRUE(refused([](auto& spec) { spec.dims[1] = 0; }, {"dims[1] is 0; 1 to 2^32"}));
  EXPECT_TRUE(refused([](auto& spec) { spec.dims[0] = (std::int64_t{1} << 32) + 1; },
                      {"dims[0] is 4294967297"}));
  EXPECT_TRUE(refused([](auto& spec) { spec.box[1] = 257; }, {"box[1] is 257; 1 to 256"}));
  EXPECT_TRUE(refused([](auto& spec) { spec.box[1] = 0; }, {"box[1] is 0"}));
}

TEST(TensorMap, RefusesStridesThatItsFieldsCannotHold) {
  for (const std::int64_t stride :
       {std::int64_t{168}, std::int64_t{0}, std::int64_t{-176}, std::int64_t{1} << 40})
    EXPECT_TRUE(refused([&](auto& spec) { spec.strides[0] = stride; },
                        {"strides[0] is " + std::to_string(stride) + " bytes", "multiple of 16"}));
}

TEST(TensorMap, RefusesRowsOfABoxThatTheSwizzleCannotHold) {
  EXPECT_TRUE(refused([](auto& spec) { spec.box[0] = 12; },
                      {"12 elements of 2 bytes, 24 together; a multiple of 16 bytes"}));
  EXPECT_TRUE(refused([](auto& spec) { spec.box[0] = 40; },
                      {"40 elements of 2 bytes, 80 together; a swizzle of 64 bytes"}));
  TensorMapSpec plain = rows();
  plain.swizzle = Swizzle::kNone;
  plain.box[0] = 256;
  validate(plain);
}

TEST(TensorMap, TheEmulatedMapHoldsEveryField) {
  const TensorMap map = emulated_tensor_map(rows());
  EmulatedTensorMap emulated;
  std::memcpy(&emulated, &map, sizeof emulated);
  EXPECT_EQ(emulated.mark, EmulatedTensorMap::kMark);
  EXPECT_EQ(emulated.address, reinterpret_cast<std::uintptr_t>(memory.data()));
  EXPECT_EQ(emulated.element_bytes, 2);
  EXPECT_EQ(emulated.rank, 2);
  EXPECT_EQ(emulated.swizzle, Swizzle::k64B);
  EXPECT_EQ(std::vector(emulated.dims, emulated.dims + 2), (std::vector<uint64>{80, 100}));
  EXPECT_EQ(std::vector(emulated.strides, emulated.strides + 2), (std::vector<uint64>{2, 176}));
  EXPECT_EQ(std::vector(emulated.box, emulated.box + 2), (std::vector<uint16>{32, 8}));
  TensorMapSpec bad = rows();
  bad.dims[0] = 0;
  EXPECT_TRUE(throws<SpecError>([&] { emulated_tensor_map(bad); }, {"dims[0] is 0"}));
}

TEST(Swizzle, ExchangesChunksOfARowByTheRowsAbove) {
  EXPECT_EQ(swizzled(0x3f0, Swizzle::kNone), 0x3f0u);
  EXPECT_EQ(swizzled(0x080, Swizzle::k32B), 0x090u);
  EXPECT_EQ(swizzled(0x190, Swizzle::k64B), 0x1a0u);
  EXPECT_EQ(swizzled(0x3f4, Swizzle::k128B), 0x384u);
  EXPECT_EQ(swizzle_span(Swizzle::kNone), 16);
  EXPECT_EQ(swizzle_span(Swizzle::k128B), 128);
}

}  // namespace
}  // namespace lazyrope
