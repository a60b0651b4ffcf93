#include <gtest/gtest.h>

#include <vector>

#include "codegen/error.h"
#include "runtime/engine/device_tensor.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

TEST(DeviceTensor, HoldsTheValuesCopiedIntoIt) {
  DeviceTensor tensor(ElementType::kInt32, {2, 3}, DeviceType::kCpu);
  EXPECT_EQ(describe(tensor.view()), "int32 [2, 3] with strides [3, 1] on cpu 0");
  EXPECT_EQ(tensor.bytes(), 24u);
  std::vector<int> values(6, -1);
  tensor.copy_to_host(values.data());
  EXPECT_EQ(values, std::vector<int>(6, 0));
  const std::vector<int> given = {1, 2, 3, 4, 5, 6};
  tensor.copy_from_host(given.data());
  DeviceTensor(tensor).copy_to_host(values.data());
  EXPECT_EQ(values, given);
}

TEST(DeviceTensor, MayBeEmpty) {
  const DeviceTensor tensor(ElementType::kBf16, {0, 8}, DeviceType::kCpu);
  EXPECT_EQ(tensor.bytes(), 0u);
  EXPECT_NE(tensor.view().data, nullptr);
}

TEST(DeviceTensor, RefusesTypesAndDevicesThatKernelsDoNotTake) {
  EXPECT_TRUE(
      throws<SpecError>([] { DeviceTensor(ElementType::kFp64, {1}, DeviceType::kCpu); },
                        {"a tensor of float64", "bfloat16, float16, float8, float32 and int32"}));
  EXPECT_TRUE(throws<SpecError>([] { DeviceTensor(ElementType::kInt32, {1}, DeviceType::kOther); },
                                {"it must be on a GPU"}));
}

}  // namespace
}  // namespace lazyrope
