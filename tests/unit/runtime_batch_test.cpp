#include <gtest/gtest.h>

#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "codegen/error.h"
#include "runtime/step/batch.h"
#include "tests/support/fake_device.h"
#include "tests/support/host_tensor.h"
#include "tests/support/throws.h"

namespace lazyrope {
namespace {

using Ints = std::vector<int>;

constexpr StepCapacity kCapacity = {.requests = 3, .segments = 4, .query_tokens = 6};

Ints values_of(const TensorView& tensor) {
  const int* data = static_cast<const int*>(tensor.data);
  return {data, data + tensor.elements()};
}

class BatchTest : public testing::Test {
 protected:
  Batch make(StepCapacity capacity = kCapacity) { return Batch(device_, ints(pages_), capacity); }

  testing::AssertionResult refuses(const std::vector<Request>& requests,
                                   const std::vector<std::string>& parts) {
    return throws<SpecError>([&] { make().fill(requests); }, parts);
  }

  const std::shared_ptr<FakeDevice> device_ = std::make_shared<FakeDevice>();
  Ints pages_ = {5, 3, 8, 1, 0};
  const Document document_ = {.first_page = 1, .num_tokens = 40, .lead = 0};
  const Document led_ = {.first_page = 2, .num_tokens = 40, .lead = 5};
  const std::vector<Request> requests_ = {
      {{50, 51}, {{.document = document_, .base = 7}, {.document = led_, .base = -9, .start = 30}}},
      {{}, {}},
      {{-3}, {{.document = document_, .base = 0, .start = 16, .length = 5}}}};
};

TEST_F(BatchTest, UploadsTheTensorsOfAStep) {
  Batch batch = make();
  batch.fill(requests_);
  EXPECT_EQ(batch.num_requests(), 3);
  EXPECT_EQ(batch.num_segments(), 3);
  EXPECT_EQ(batch.num_tokens(), 3);
  const StepTensors t = batch.upload(16, nullptr);
  EXPECT_EQ(values_of(t.q_indptr), (Ints{0, 2, 2, 3}));
  EXPECT_EQ(values_of(t.q_position), (Ints{50, 51, -3}));
  EXPECT_EQ(values_of(t.segments.indptr), (Ints{0, 2, 2, 3}));
  EXPECT_EQ(values_of(t.segments.base), (Ints{7, -9, 0}));
  EXPECT_EQ(values_of(t.segments.start), (Ints{0, 30, 16}));
  EXPECT_EQ(values_of(t.segments.length), (Ints{40, 10, 5}));
  EXPECT_EQ(values_of(t.segments.first_page), (Ints{1, 4, 2}));
  EXPECT_EQ(values_of(t.segments.lead.value()), (Ints{0, 3, 0}));
  EXPECT_EQ(t.pages.data, pages_.data());
}

TEST_F(BatchTest, PagesAreOfTheSizeOfTheStep) {
  Batch batch = make();
  batch.fill(requests_);
  const StepTensors t = batch.upload(32, nullptr);
  EXPECT_EQ(values_of(t.segments.first_page), (Ints{1, 3, 1}));
  EXPECT_EQ(values_of(t.segments.lead.value()), (Ints{0, 3, 16}));
}

TEST_F(BatchTest, IsEmptyBeforeItIsFilled) {
  Batch batch = make();
  const StepTensors t = batch.upload(16, nullptr);
  EXPECT_EQ(values_of(t.q_indptr), Ints{0});
  EXPECT_EQ(t.segments.base.shape[0], 0);
}

TEST_F(BatchTest, TheSameMemoryHoldsTheNextRequests) {
  Batch batch = make();
  batch.fill(requests_);
  const void* memory = batch.upload(16, nullptr).q_indptr.data;
  batch.fill(std::vector<Request>{{{9}, {}}});
  const StepTensors t = batch.upload(16, nullptr);
  EXPECT_EQ(t.q_indptr.data, memory);
  EXPECT_EQ(values_of(t.q_position), Ints{9});
}

// The segments of request 0 are in 3 runs of 16 slots and in one, that of request 2 is in one.
TEST_F(BatchTest, RunSlotsAreThoseOfRequestsWithEnoughTokens) {
  Batch batch = make();
  EXPECT_EQ(batch.run_slots(1), 0);
  batch.fill(requests_);
  EXPECT_EQ(batch.run_slots(1), 5 * 16);
  EXPECT_EQ(batch.run_slots(2), 4 * 16);
  EXPECT_EQ(batch.run_slots(3), 0);
}

TEST_F(BatchTest, CapacityForIsExact) {
  const StepCapacity capacity = Batch::capacity_for(requests_);
  EXPECT_EQ(capacity.requests, 3);
  EXPECT_EQ(capacity.segments, 3);
  EXPECT_EQ(capacity.query_tokens, 3);
  EXPECT_EQ(capacity.tokens_per_request, 2);
  EXPECT_NO_THROW(make(capacity).fill(requests_));
}

TEST_F(BatchTest, IsRefusedInCapture) {
  Batch batch = make();
  device_->capturing = true;
  EXPECT_TRUE(throws<SpecError>([&] { batch.upload(16, nullptr); }, {"outside the capture"}));
}

TEST_F(BatchTest, WhatExceedsTheCapacityIsNamed) {
  const auto refuses_with = [&](StepCapacity capacity, const char* text) {
    return throws<SpecError>([&] { make(capacity).fill(requests_); }, {text, "greater capacity"});
  };
  EXPECT_TRUE(refuses_with({2, 4, 6}, "3 requests are 1 more than the batch has room for (2)"));
  EXPECT_TRUE(refuses_with({3, 1, 6}, "3 segments are 2 more than the batch has room for (1)"));
  EXPECT_TRUE(refuses_with({3, 4, 2}, "3 query tokens are 1 more than"));
  EXPECT_TRUE(refuses_with({3, 4, 6, 1}, "2 query tokens of request 0 are 1 more than"));
}

TEST_F(BatchTest, IllegalCapacitiesAreNamed) {
  EXPECT_TRUE(throws<SpecError>([&] { make({-1, 1, 1}); }, {"capacity: requests = -1"}));
  EXPECT_TRUE(throws<SpecError>([&] { make({1, 1, 1, -1}); }, {"tokens_per_request = -1"}));
  EXPECT_EQ(make({1, 1, 5, 9}).capacity().tokens_per_request, 5);
}

TEST_F(BatchTest, BadValuesAreNamedWithRequestAndSegment) {
  constexpr int kMost = std::numeric_limits<int>::max();
  const auto with = [&](Segment segment) {
    return std::vector<Request>{{{0}, {}}, {{0}, {{.document = document_}, segment}}};
  };
  EXPECT_TRUE(refuses(with({.document = document_, .start = -1}),
                      {"request 1, segment 1: start = -1", "at least 0"}));
  EXPECT_TRUE(refuses(with({.document = document_, .length = -1}),
                      {"request 1, segment 1: length = -1", "at least 0"}));
  EXPECT_TRUE(refuses(with({.document = document_, .start = 30, .length = 11}),
                      {"start + length = 41; the document has 40 tokens"}));
  EXPECT_TRUE(refuses(with({.document = document_, .base = kMost - 39}),
                      {"base + start + length = 2147483648"}));
  EXPECT_TRUE(refuses(with({.document = {.first_page = -1}}), {"document.first_page = -1"}));
  EXPECT_TRUE(refuses(with({.document = {.num_tokens = -1}}), {"document.num_tokens = -1"}));
  EXPECT_TRUE(refuses(with({.document = {.lead = -1}}), {"document.lead = -1"}));
  EXPECT_TRUE(refuses(with({.document = {.num_tokens = kMost, .lead = 1}, .length = 0}),
                      {"document.lead + document.num_tokens = 2147483648"}));
}

TEST_F(BatchTest, KeepsItsRequestsWhereTheNextAreRefused) {
  Batch batch = make();
  batch.fill(requests_);
  EXPECT_THROW(batch.fill(std::vector<Request>(9)), SpecError);
  EXPECT_EQ(values_of(batch.upload(16, nullptr).q_position), (Ints{50, 51, -3}));
}

TEST_F(BatchTest, PagesBeyondTheListsAreNamedAtTheUpload) {
  Batch batch = make();
  batch.fill(std::vector<Request>{{{0}, {{.document = {.first_page = 3, .num_tokens = 33}}}}});
  EXPECT_TRUE(throws<SpecError>(
      [&] { batch.upload(16, nullptr); },
      {"request 0, segment 0: its last page is element 5 of pages, which has 5 elements"}));
  EXPECT_NO_THROW(batch.upload(32, nullptr));
}

TEST_F(BatchTest, PositionsBelowInt32AreNamedAtTheUpload) {
  constexpr int kLeast = std::numeric_limits<int>::min();
  Batch batch = make();
  batch.fill(std::vector<Request>{{{0}, {{.document = led_, .base = kLeast}}}});
  EXPECT_TRUE(throws<SpecError>([&] { batch.upload(16, nullptr); },
                                {"request 0, segment 0: slot 0 of its first page would have the "
                                 "logical position -2147483653"}));
}

TEST_F(BatchTest, PagesMustBeIntsOnTheDevice) {
  TensorView floats = ints(pages_);
  floats.type = ElementType::kFp32;
  EXPECT_TRUE(throws<SpecError>([&] { Batch(device_, floats, kCapacity); }, {"pages is float32"}));
}

}  // namespace
}  // namespace lazyrope
