#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "runtime/step/accessed_memory.h"

namespace lazyrope {
namespace {

TensorView tensor(std::byte* data, std::initializer_list<std::int64_t> shape,
                  std::initializer_list<std::int64_t> strides) {
  TensorView view = make_tensor(data, ElementType::kFp16, shape, DeviceType::kCpu);
  std::copy(strides.begin(), strides.end(), view.strides.begin());
  return view;
}

TEST(AccessedMemory, RangeOfATensorIsItsLowestToItsHighestByte) {
  std::array<std::byte, 64> memory{};
  const auto check = [&](const TensorView& view, std::ptrdiff_t first, std::size_t bytes) {
    const MemoryRange range = range_of("q", view, false);
    EXPECT_EQ(static_cast<const std::byte*>(range.begin) - memory.data(), first);
    EXPECT_EQ(range.bytes, bytes);
  };
  check(tensor(memory.data(), {4, 3}, {3, 1}), 0, 24);
  check(tensor(memory.data() + 8, {2, 3}, {10, 1}), 8, 26);
  check(tensor(memory.data() + 20, {3, 2}, {-4, 1}), 4, 20);
  check(tensor(memory.data(), {0, 3}, {3, 1}), 0, 0);
  check(tensor(memory.data(), {1, 3}, {std::numeric_limits<std::int64_t>::max(), 1}), 0, 6);
}

TEST(AccessedMemory, ListsPresentTensorsAndMarksWrittenOnes) {
  std::array<std::byte, 64> memory{};
  const TensorView view = tensor(memory.data(), {2}, {1});
  const auto ranges =
      AccessedMemory().reads("sinks", std::nullopt).reads("q", view).writes("out", view).ranges();
  ASSERT_EQ(ranges.size(), 2u);
  EXPECT_EQ(ranges[0].name, "q");
  EXPECT_FALSE(ranges[0].is_written);
  EXPECT_EQ(ranges[1].name, "out");
  EXPECT_TRUE(ranges[1].is_written);
}

}  // namespace
}  // namespace lazyrope
