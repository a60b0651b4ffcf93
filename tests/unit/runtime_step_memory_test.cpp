#include <gtest/gtest.h>

#include <stdexcept>

#include "codegen/error.h"
#include "runtime/emulator/fault.h"
#include "runtime/step/step_memory.h"
#include "tests/support/fake_device.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

class StepMemoryTest : public testing::Test {
 protected:
  static void fault() { throw KernelFault("a rule", "is broken"); }

  unsigned char& first_byte() { return *static_cast<unsigned char*>(memory_.buffer().data()); }

  StepMemory memory_{std::make_shared<FakeDevice>(), 16, nullptr};
};

TEST_F(StepMemoryTest, BeginsWithZeros) {
  const auto* bytes = static_cast<const unsigned char*>(memory_.buffer().data());
  ASSERT_EQ(memory_.buffer().bytes(), 16u);
  for (int i = 0; i < 16; ++i) EXPECT_EQ(bytes[i], 0) << "byte " << i;
}

TEST_F(StepMemoryTest, RefusesLaunchesFromAKernelFaultUntilItIsCleared) {
  EXPECT_THROW(memory_.run([] { fault(); }), KernelFault);
  EXPECT_TRUE(throws<SpecError>([&] { memory_.run([] { FAIL() << "it launches"; }); },
                                {"a kernel ended early", "update() refills it"}));
  first_byte() = 7;
  memory_.clear_if_broken(nullptr);
  EXPECT_EQ(first_byte(), 0);
  int launches = 0;
  memory_.run([&] { ++launches; });
  EXPECT_EQ(launches, 1);
}

TEST_F(StepMemoryTest, KeepsItsContentWithoutAFault) {
  first_byte() = 7;
  memory_.clear_if_broken(nullptr);
  EXPECT_EQ(first_byte(), 7);
}

TEST_F(StepMemoryTest, RefusesLaunchesAfterAnInterruption) {
  EXPECT_THROW(memory_.run([] { throw std::runtime_error("Ctrl-C"); }), std::runtime_error);
  EXPECT_THROW(memory_.run([] {}), SpecError);
  memory_.clear_if_broken(nullptr);
  EXPECT_NO_THROW(memory_.run([] {}));
}

TEST_F(StepMemoryTest, StaysUsableAfterAnErrorBeforeTheLaunch) {
  EXPECT_THROW(memory_.run([] { throw SpecError("a pool"); }), SpecError);
  EXPECT_THROW(memory_.run([] { throw DriverError(DriverFailure{}); }), DriverError);
  EXPECT_NO_THROW(memory_.run([] {}));
}

}  // namespace
}  // namespace lazyrope
