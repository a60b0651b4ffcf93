#include <gtest/gtest.h>

#include <functional>
#include <limits>

#include "codegen/error.h"
#include "runtime/base/error.h"
#include "runtime/step/append_step.h"
#include "tests/support/fake_device.h"
#include "tests/support/metadata.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

constexpr int kCapacity = 12;

// Two requests of nine and two rows. The second starts at slot 5 of the second page of its list.
AppendArrays legal_arrays() {
  return {.indptr = {0, 9, 11},
          .start = {0, 40},
          .first_page = {0, 1},
          .lead = {0, 21},
          .pages = {4, 1, 3}};
}

class AppendStepTest : public testing::Test {
 protected:
  AppendStep make(int capacity = kCapacity, PoolFormat format = {}) const {
    return AppendStep(device_, fake_kernel(KernelKind::kPlanAppend, /*threads=*/8), format,
                      AppendCapacity{capacity});
  }
  testing::AssertionResult refuses(AppendArrays arrays,
                                   const std::vector<std::string>& parts) const {
    return throws<SpecError>([&] { make().update(arrays.tensors(), /*check=*/true, nullptr); },
                             parts);
  }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  AppendArrays arrays_ = legal_arrays();
};

TEST_F(AppendStepTest, HasNoSlotsAfterALaunchThatFailed) {
  AppendStep step = make();
  const auto update = [&] { step.update(arrays_.tensors(), /*check=*/false, nullptr); };
  EXPECT_FALSE(step.is_filled());
  update();
  EXPECT_TRUE(step.is_filled());
  device_->on_launch = [](int, const void*) { throw DriverError({.text = "no launch"}); };
  EXPECT_THROW(update(), DriverError);
  EXPECT_FALSE(step.is_filled());
}

TEST_F(AppendStepTest, PassesTheCallersTensorsToThePlanner) {
  PlanAppendParams seen{};
  int ctas = 0;
  device_->on_launch = [&](int count, const void* params) {
    ctas = count;
    seen = *static_cast<const PlanAppendParams*>(params);
  };
  AppendStep step = make();
  step.update(arrays_.tensors(), /*check=*/true, nullptr);
  EXPECT_EQ(ctas, 2) << "12 threads, 8 in a CTA";
  EXPECT_EQ(seen.indptr, arrays_.indptr.data());
  EXPECT_EQ(seen.first, arrays_.start.data());
  EXPECT_EQ(seen.first_page, arrays_.first_page.data());
  EXPECT_EQ(seen.lead, arrays_.lead.data());
  EXPECT_EQ(seen.pages, arrays_.pages.data());
  EXPECT_EQ(seen.num_requests, 2);
  EXPECT_EQ(seen.page_size, 16);
  EXPECT_EQ(seen.capacity, kCapacity);
  EXPECT_EQ(seen.records, step.records());
}

TEST_F(AppendStepTest, PassesSlotsInPlaceOfSpansToThePlanner) {
  PlanAppendParams seen{};
  device_->on_launch = [&](int, const void* params) {
    seen = *static_cast<const PlanAppendParams*>(params);
  };
  std::vector<std::int64_t> mapping = {35, -1, 0};
  std::vector<std::int64_t> index = {70, -2, 0};
  const auto tensor = [](std::vector<std::int64_t>& values) {
    return make_tensor(values.data(), ElementType::kInt64, {std::ssize(values)}, DeviceType::kCpu);
  };
  AppendStep step = make();
  step.update(arrays_.tensors(), /*check=*/false, nullptr);
  step.update({.slot_mapping = tensor(mapping), .index = tensor(index)}, /*check=*/true, nullptr);
  EXPECT_EQ(seen.indptr, nullptr);
  EXPECT_EQ(static_cast<const void*>(seen.slot_mapping), mapping.data());
  EXPECT_EQ(static_cast<const void*>(seen.index), index.data());
  EXPECT_EQ(seen.num_slots, 3);
  EXPECT_EQ(seen.capacity, kCapacity);
  step.update(arrays_.tensors(), /*check=*/false, nullptr);
  EXPECT_EQ(seen.indptr, arrays_.indptr.data());
}

TEST_F(AppendStepTest, IllegalCapacitiesAndPageSizesAreNamed) {
  EXPECT_TRUE(throws<SpecError>([&] { make(-1); }, {"capacity: tokens = -1", "at least 0"}));
  EXPECT_TRUE(throws<SpecError>([&] { make(kCapacity, {.page_size = 24}); },
                                {"page_size = 24", "multiple of 16"}));
}

TEST_F(AppendStepTest, TensorsOfAnotherLengthAreNamed) {
  struct Row {
    std::vector<int> AppendArrays::* field;
    const char* text;
  };
  for (const Row& row :
       {Row{&AppendArrays::indptr, "spans.indptr has 4 elements; it must have 3"},
        Row{&AppendArrays::first_page, "spans.first_page has 3 elements; it must have 2"},
        Row{&AppendArrays::lead, "spans.lead has 3 elements; it must have 2"}}) {
    AppendArrays arrays = legal_arrays();
    (arrays.*row.field).push_back(0);
    EXPECT_TRUE(
        throws<SpecError>([&] { make().update(arrays.tensors(), false, nullptr); }, {row.text}));
  }
}

TEST_F(AppendStepTest, EveryTensorMustBeInts) {
  using Field = TensorView& (*)(AppendTensors&);
  const std::vector<std::pair<const char*, Field>> fields = {
      {"spans.indptr", [](AppendTensors& t) -> TensorView& { return t.spans.indptr; }},
      {"spans.start", [](AppendTensors& t) -> TensorView& { return t.spans.start; }},
      {"spans.first_page", [](AppendTensors& t) -> TensorView& { return t.spans.first_page; }},
      {"spans.lead", [](AppendTensors& t) -> TensorView& { return *t.spans.lead; }},
      {"pages", [](AppendTensors& t) -> TensorView& { return t.pages; }}};
  for (const auto& [name, field] : fields) {
    AppendTensors tensors = arrays_.tensors();
    field(tensors).type = ElementType::kOther;
    EXPECT_TRUE(throws<SpecError>([&] { make().update(tensors, false, nullptr); },
                                  {std::string(name) + " is an unknown dtype", "must be int32"}));
  }
}

TEST_F(AppendStepTest, LeadMayBeLeftOut) {
  PlanAppendParams seen{};
  device_->on_launch = [&](int, const void* params) {
    seen = *static_cast<const PlanAppendParams*>(params);
  };
  arrays_.pages = {4, 1, 3};
  AppendTensors tensors = arrays_.tensors();
  tensors.spans.lead.reset();
  make().update(tensors, /*check=*/true, nullptr);
  EXPECT_EQ(seen.lead, nullptr);
}

TEST_F(AppendStepTest, MoreSpansThanTheCapacityAreRefused) {
  const auto make = [&](std::optional<int> spans) {
    return AppendStep(device_, fake_kernel(KernelKind::kPlanAppend, /*threads=*/8), {},
                      {.tokens = kCapacity, .spans = spans});
  };
  EXPECT_NO_THROW(make(2).update(arrays_.tensors(), /*check=*/true, nullptr));
  EXPECT_TRUE(throws<SpecError>([&] { make(1).update(arrays_.tensors(), false, nullptr); },
                                {"2 spans; the step was made for at most 1"}));
  EXPECT_TRUE(throws<SpecError>([&] { make(-1); }, {"capacity: spans = -1", "at least 0"}));
}

TEST_F(AppendStepTest, CheckingIsRefusedInCapture) {
  AppendStep step = make();
  device_->capturing = true;
  EXPECT_NO_THROW(step.update(arrays_.tensors(), /*check=*/false, nullptr));
  EXPECT_THROW(step.update(arrays_.tensors(), /*check=*/true, nullptr), SpecError);
  EXPECT_THROW(step.check_pages(5, nullptr), SpecError);
}

TEST_F(AppendStepTest, BadValuesAreNamedWithTheirRequest) {
  const auto with = [](std::vector<int> AppendArrays::* field, std::size_t at, int value) {
    AppendArrays arrays = legal_arrays();
    (arrays.*field)[at] = value;
    return arrays;
  };
  EXPECT_TRUE(refuses(with(&AppendArrays::indptr, 0, 1), {"spans.indptr[0] = 1; it must be 0"}));
  EXPECT_TRUE(
      refuses(with(&AppendArrays::indptr, 2, 8), {"spans.indptr[2] = 8 after 9", "not decrease"}));
  EXPECT_TRUE(refuses(with(&AppendArrays::start, 1, -1), {"span 1: start = -1", "at least 0"}));
  EXPECT_TRUE(refuses(with(&AppendArrays::lead, 0, -2), {"span 0: start = 0, lead = -2"}));
  EXPECT_TRUE(refuses(with(&AppendArrays::first_page, 0, -1),
                      {"span 0: pages -1 to -1 of its list; pages has 3 elements"}));
  EXPECT_TRUE(refuses(with(&AppendArrays::first_page, 1, 2),
                      {"span 1: pages 2 to 3 of its list; pages has 3 elements"}));
}

TEST_F(AppendStepTest, ExtremeIntsAreNamed) {
  constexpr int kLargest = std::numeric_limits<int>::max();
  arrays_.indptr = {-2, kLargest, kLargest};
  EXPECT_TRUE(refuses(arrays_, {"spans.indptr[0] = -2; it must be 0"}));
  arrays_ = legal_arrays();
  arrays_.first_page[1] = kLargest;
  EXPECT_TRUE(refuses(arrays_, {"span 1: pages 2147483647 to 2147483648 of its list"}));
}

TEST_F(AppendStepTest, MoreRowsThanTheCapacityAreRefused) {
  arrays_.indptr = {0, 9, 13};
  EXPECT_TRUE(refuses(arrays_, {"13", "at most 12"}));
}

TEST_F(AppendStepTest, IndicesThatDoNotFitAreRefused) {
  arrays_.start[1] = std::numeric_limits<int>::max();
  EXPECT_TRUE(refuses(arrays_, {"span 1", "int32"}));
}

// A step with a record for each row. Rows without a slot have the record {99, -1, 0, 0}.
class FilledAppendStepTest : public AppendStepTest {
 protected:
  FilledAppendStepTest() : step(make()) {
    device_->on_launch = [&](int, const void* params) {
      records = static_cast<const PlanAppendParams*>(params)->records;
    };
    step.update(arrays_.tensors(), /*check=*/false, nullptr);
    for (int i = 0; i < kCapacity; ++i) records[i] = {99, -1, 0, 0};
  }

  AppendStep step;
  AppendRecord* records = nullptr;
};

TEST_F(FilledAppendStepTest, RowsForPagesOutsideThePoolAreNamed) {
  records[3] = {4, 3, 3, 0};
  EXPECT_NO_THROW(step.check_pages(5, nullptr));
  EXPECT_TRUE(throws<SpecError>([&] { step.check_pages(4, nullptr); },
                                {"row 3 of step is on page 4; the pool has pages 0 to 3"}));
  records[3].page = -1;
  EXPECT_TRUE(
      throws<SpecError>([&] { step.check_pages(5, nullptr); }, {"row 3 of step is on page -1"}));
}

TEST_F(FilledAppendStepTest, SlotsWithoutARowAreCounted) {
  records[3] = {4, 3, 3, 0};
  EXPECT_NO_THROW(step.check_writes(4, 5, nullptr));
  EXPECT_TRUE(throws<SpecError>([&] { step.check_writes(3, 5, nullptr); },
                                {"k has 3 rows; the step has slots for 4"}));
  EXPECT_TRUE(
      throws<SpecError>([&] { step.check_writes(4, 4, nullptr); }, {"row 3 of step is on page 4"}));
}

TEST_F(FilledAppendStepTest, RowsThatShareASlotAreNamed) {
  records[3] = {4, 3, 3, 0};
  records[5] = {4, 2, 3, 0};
  EXPECT_NO_THROW(step.check_writes(kCapacity, 5, nullptr));
  records[5].slot = 3;
  EXPECT_TRUE(throws<SpecError>([&] { step.check_writes(kCapacity, 5, nullptr); },
                                {"rows 3 and 5 of step are both slot 3 of page 4"}));
}

}  // namespace
}  // namespace lazyrope
