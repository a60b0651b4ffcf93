#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "runtime/base/tensor.h"

namespace lazyrope {
namespace {

TensorView tensor(std::initializer_list<std::int64_t> shape,
                  std::initializer_list<std::int64_t> strides) {
  TensorView view = make_tensor(nullptr, ElementType::kBf16, shape, DeviceType::kCpu);
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

TEST(Tensor, IsMadeContiguous) {
  int data = 0;
  const TensorView view = make_tensor(&data, ElementType::kFp16, {2, 3, 5}, DeviceType::kGpu, 1);
  EXPECT_EQ(view.data, &data);
  EXPECT_EQ(describe(view), "float16 [2, 3, 5] with strides [15, 5, 1] on gpu 1");
  EXPECT_EQ(view.elements(), 30);
  EXPECT_TRUE(view.is_contiguous());
}

TEST(Tensor, DescribesEveryTypeAndDevice) {
  TensorView view = make_tensor(nullptr, ElementType::kInt32, {}, DeviceType::kCpu);
  EXPECT_EQ(describe(view), "int32 [] with strides [] on cpu 0");
  view.device_type = DeviceType::kOther;
  for (const auto& [type, text] : {std::pair(ElementType::kBf16, "bfloat16"),
                                   {ElementType::kFp16, "float16"},
                                   {ElementType::kFp32, "float32"},
                                   {ElementType::kInt32, "int32"},
                                   {ElementType::kOther, "an unknown dtype"}}) {
    view.type = type;
    EXPECT_EQ(describe(view), std::string(text) + " [] with strides [] on an unknown device 0");
  }
}

TEST(Tensor, KnowsWhetherItIsContiguous) {
  EXPECT_TRUE(tensor({}, {}).is_contiguous());
  EXPECT_TRUE(tensor({4, 3}, {3, 1}).is_contiguous());
  EXPECT_TRUE(tensor({1, 3}, {77, 1}).is_contiguous()) << "the stride of one row is never used";
  EXPECT_TRUE(tensor({4, 1}, {1, 9}).is_contiguous());
  EXPECT_FALSE(tensor({4, 3}, {4, 1}).is_contiguous());
  EXPECT_FALSE(tensor({4, 3}, {1, 4}).is_contiguous());
  EXPECT_FALSE(tensor({4}, {2}).is_contiguous());
  EXPECT_FALSE(tensor({4}, {-1}).is_contiguous());
}

TEST(Tensor, AnEmptyTensorHasNoElements) {
  EXPECT_EQ(tensor({0, 3}, {3, 1}).elements(), 0);
  EXPECT_EQ(tensor({}, {}).elements(), 1);
  EXPECT_TRUE(tensor({4, 0}, {1, 1}).is_empty());
  EXPECT_FALSE(tensor({}, {}).is_empty());
}

TEST(Tensor, RangeIsFromTheLowestToTheHighestByte) {
  std::array<std::int16_t, 64> memory{};
  const auto check = [&](std::initializer_list<std::int64_t> shape,
                         std::initializer_list<std::int64_t> strides, std::int64_t lowest,
                         std::int64_t span) {
    TensorView view = tensor(shape, strides);
    view.data = memory.data() + 32;
    const ByteRange range = byte_range(view);
    EXPECT_EQ(static_cast<std::int64_t>(range.lowest) -
                  static_cast<std::int64_t>(reinterpret_cast<std::uintptr_t>(view.data)),
              lowest);
    EXPECT_EQ(range.span, span);
  };
  check({}, {}, 0, 1);
  check({2, 3}, {10, 2}, 0, 2 * (10 + 4) + 1);
  check({2, 3}, {-10, 2}, -20, 2 * (10 + 4) + 1);
  check({1, 3}, {std::numeric_limits<std::int64_t>::max(), 0}, 0, 1);
  for (const std::int64_t stride :
       {std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min(),
        std::int64_t{1} << 59})
    check({3}, {stride}, 0, ByteRange::kMaxSpan);
}

}  // namespace
}  // namespace lazyrope
