#include <gtest/gtest.h>

#include "codegen/error.h"
#include "runtime/step/checks.h"
#include "tests/support/fake_device.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

class Checks : public testing::Test {
 protected:
  alignas(16) int data_[16] = {};
  TensorView rows_ = make_tensor(data_, ElementType::kBf16, {4, 2, 8}, DeviceType::kCpu);
  TensorView ints_ = make_tensor(data_, ElementType::kInt32, {16}, DeviceType::kCpu);
  FakeDevice device_;
};

constexpr const char* kRows = "q is bfloat16 [4, 2, 8] with strides [16, 8, 1] on cpu 0";

TEST_F(Checks, LegalArgumentsPass) {
  check_on_device("q", rows_, device_);
  check_type("q", rows_, ElementType::kBf16);
  check_rank("q", rows_, 3, "[tokens, heads, head_dim]");
  check_extent("q", rows_, 1, 2, "heads");
  check_rows("q", rows_, 2, 16);
  check_length("base", ints_, 16, device_);
  check_within_capacity("tokens", 16, 16);
  check_within_capacity("tokens", 0, 0);
  refuse_in_capture("check=True", device_, nullptr);
  EXPECT_EQ(length_of_ints("base", ints_, device_), 16);
}

TEST_F(Checks, AnotherDeviceIsRefused) {
  rows_.device_type = DeviceType::kGpu;
  rows_.device = 1;
  EXPECT_TRUE(throws<SpecError>([&] { check_on_device("q", rows_, device_); },
                                {"q is bfloat16", "on gpu 1; it must be on fake GPU"}));
}

TEST_F(Checks, AnotherTypeIsRefused) {
  EXPECT_TRUE(throws<SpecError>([&] { check_type("q", rows_, ElementType::kFp16); },
                                {kRows, "its dtype must be float16"}));
}

TEST_F(Checks, AnotherRankIsRefused) {
  EXPECT_TRUE(throws<SpecError>([&] { check_rank("q", rows_, 4, "[a, b, c, d]"); },
                                {kRows, "its shape must be [a, b, c, d]"}));
}

TEST_F(Checks, AnotherExtentIsRefused) {
  EXPECT_TRUE(throws<SpecError>([&] { check_extent("q", rows_, 2, 64, "head_dim"); },
                                {kRows, "dimension 2 must be 64 (head_dim)"}));
}

TEST_F(Checks, RowsMustBeContiguous) {
  rows_.strides = {16, 1, 2};
  EXPECT_TRUE(throws<SpecError>([&] { check_rows("q", rows_, 2, 16); },
                                {"q is bfloat16", "its last dimension must be contiguous"}));
  rows_.shape[2] = 1;
  rows_.strides = {16, 8, 2};
  EXPECT_NO_THROW(check_rows("q", rows_, 2, 16)) << "a row of one element is contiguous";
}

TEST_F(Checks, StridesMustBeMultiplesOfTheAccess) {
  rows_.strides[0] = 20;
  EXPECT_TRUE(
      throws<SpecError>([&] { check_rows("q", rows_, 2, 16); },
                        {"[20, 8, 1]", "strides must be positive multiples of 8 elements"}));
  EXPECT_NO_THROW(check_rows("q", rows_, 2, 8));
  rows_.strides[0] = -16;
  EXPECT_TRUE(
      throws<SpecError>([&] { check_rows("q", rows_, 2, 16); },
                        {"[-16, 8, 1]", "strides must be positive multiples of 8 elements"}));
  rows_.shape[0] = 1;
  EXPECT_NO_THROW(check_rows("q", rows_, 2, 16)) << "the stride of one row is never used";
}

TEST_F(Checks, AddressesMustBeMultiplesOfTheAccess) {
  rows_.data = data_ + 2;
  EXPECT_NO_THROW(check_rows("q", rows_, 2, 8));
  EXPECT_TRUE(throws<SpecError>([&] { check_rows("q", rows_, 2, 16); },
                                {"q begins at address 0x", "a multiple of 16 bytes"}));
}

TEST_F(Checks, MetadataMustBeOneDimensionalInts) {
  EXPECT_TRUE(throws<SpecError>([&] { length_of_ints("base", rows_, device_); },
                                {"base is bfloat16", "its dtype must be int32"}));
  TensorView table = make_tensor(data_, ElementType::kInt32, {4, 4}, DeviceType::kCpu);
  EXPECT_TRUE(throws<SpecError>([&] { length_of_ints("base", table, device_); },
                                {"base is int32 [4, 4]", "must be one-dimensional"}));
  ints_.shape[0] = 8;
  ints_.strides[0] = 2;
  EXPECT_TRUE(throws<SpecError>([&] { length_of_ints("base", ints_, device_); },
                                {"base is int32 [8] with strides [2]", "must be contiguous"}));
  ints_.strides[0] = 1;
  ints_.device_type = DeviceType::kGpu;
  EXPECT_TRUE(throws<SpecError>([&] { length_of_ints("base", ints_, device_); },
                                {"base is int32", "must be on fake GPU"}));
}

TEST_F(Checks, AnotherLengthIsRefused) {
  EXPECT_TRUE(throws<SpecError>([&] { check_length("base", ints_, 5, device_); },
                                {"base has 16 elements; it must have 5"}));
}

TEST_F(Checks, MoreThanTheCapacityIsRefused) {
  EXPECT_TRUE(throws<SpecError>([] { check_within_capacity("segments", 9, 8); },
                                {"9 segments", "at most 8", "make one of greater capacity"}));
  EXPECT_TRUE(throws<SpecError>([] { check_within_capacity("requests", -1, 8); }, {"-1 requests"}));
}

TEST_F(Checks, WaitingCallIsRefusedInCapture) {
  device_.capturing = true;
  EXPECT_TRUE(throws<SpecError>(
      [&] { refuse_in_capture("check=True", device_, nullptr); },
      {"check=True waits for the stream", "captured in a graph", "outside the capture"}));
}

}  // namespace
}  // namespace lazyrope
